"""`localinfer show --modelfile`, `--template`, `--parameters`, `--system` and `--license`."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tiny import CHATML, tiny_llama

from localinfer.hub import resolve

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return a file without options, which is the file of the model `mine`, too."""
    monkeypatch.setenv("LOCALINFER_CONFIG_DIR", str(tmp_path))
    options = 'options = { temp = 0.5, stop = ["END", "a b"], system_prompt = "Be brief." }'
    (tmp_path / "models.toml").write_text(f"[models.mine]\npath = 'tiny.gguf'\nlicence = 'MIT'\n{options}\n")
    return tiny_llama(tmp_path / "tiny.gguf")


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("template", CHATML),
        ("parameters", f'{"temperature":30} 0.5\n{"stop":30} END\n{"stop":30} "a b"'),
        ("system", "Be brief."),
        ("license", "MIT"),
    ],
)
def test_one_part(run: Run, part: str, expected: str) -> None:
    assert run("show", "mine", f"--{part}") == (0, expected.rstrip("\n") + "\n", "")


def test_modelfile(run: Run, tmp_path: Path) -> None:
    code, out, err = run("show", "mine", "--modelfile")
    (tmp_path / "Modelfile").write_text(out)
    assert (code, err) == (0, "")
    assert run("create", "copy", "-f", str(tmp_path / "Modelfile"))[0] == 0
    assert resolve.default_options("copy") == resolve.default_options("mine")


def test_template_of_an_option(run: Run, tmp_path: Path) -> None:
    """The template that a chat would use, not the one of the file."""
    registry = tmp_path / "models.toml"
    registry.write_text(registry.read_text().replace("temp = 0.5", "chat_template = '{{ messages }}'"))
    assert run("show", "mine", "--template") == (0, "{{ messages }}\n", "")
    assert 'TEMPLATE """{{ messages }}"""\n' in run("show", "mine", "--modelfile")[1]


def test_what_is_not_known(run: Run, model: Path) -> None:
    assert run("show", str(model), "--system") == (0, "", f"{model}: the model has no system prompt of its own\n")
    assert run("show", str(model), "--parameters")[1] == ""
    assert "PARAMETER" not in run("show", str(model), "--modelfile")[1]


@pytest.mark.parametrize("options", [["--system", "--license"], ["--template", "--json"]])
def test_one_part_at_a_time(run: Run, options: list[str]) -> None:
    code, out, err = run("show", "mine", *options)
    assert (code, out) == (2, "")
    assert err == f"error: {' and '.join(options)}: only one of them can be used\n"

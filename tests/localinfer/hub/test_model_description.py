"""The description of a model as a Modelfile, which `create` reads back."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tiny import CHATML, Field, tiny_llama

from localinfer.gguf.reader import open_gguf
from localinfer.hub import resolve
from localinfer.hub.model_description import ModelDescription, describe
from localinfer.hub.modelfile import parse_modelfile

Run = Callable[..., tuple[int, str, str]]
OPTIONS = """
temp = 0.5
ctx_size = 4096
stop = ["<|user|>", "END", "a b", 'say "no"', ' x']
system_prompt = "You are Mario,\\nthe \\"plumber\\"."
cache_type_k = "q8_0"
mmap = false
"""


@pytest.fixture(autouse=True)
def config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the user's models.toml, with the model `mine`, whose file has a licence and a sampling option."""
    monkeypatch.setenv("LOCALINFER_CONFIG_DIR", str(tmp_path))
    metadata = {"general.license": Field("STRING", "mit"), "general.sampling.top_k": Field("INT32", 7)}
    tiny_llama(tmp_path / "a model.gguf", **metadata)
    path = tmp_path / "models.toml"
    path.write_text(f"[models.mine]\npath = 'a model.gguf'\n[models.mine.options]{OPTIONS}")
    return path


def described(name: str, template: str = CHATML) -> ModelDescription:
    return describe(name, open_gguf(resolve.find(name)), template)


def test_modelfile_has_all_that_is_known(tmp_path: Path) -> None:
    text = described("mine").modelfile()
    parsed = parse_modelfile(text, "Modelfile")
    assert parsed.source == str(tmp_path / "a model.gguf")
    expected = {"top_k": 7, "chat_template": CHATML.strip("\n")} | resolve.default_options("mine")
    assert {k: tuple(v) if isinstance(v, list) else v for k, v in parsed.options.items()} == expected
    assert 'LICENSE """mit"""\n' in text
    assert "PARAMETER num_ctx 4096\n" in text


def test_create_reads_it_back(run: Run, tmp_path: Path) -> None:
    (tmp_path / "Modelfile").write_text(described("mine").modelfile())
    assert run("create", "copy", "-f", str(tmp_path / "Modelfile"))[0] == 0
    assert resolve.find("copy") == resolve.find("mine")
    assert resolve.default_options("copy") == {"top_k": 7} | resolve.default_options("mine")


def test_another_template_is_kept(run: Run, tmp_path: Path) -> None:
    template = "{% for each in messages %}{{ each.content }}\n{% endfor %}"
    (tmp_path / "Modelfile").write_text(described("mine", template).modelfile())
    assert run("create", "copy", "-f", str(tmp_path / "Modelfile"))[0] == 0
    assert resolve.default_options("copy")["chat_template"] == template


@pytest.mark.parametrize("system", ['three """ marks', 'ends in "'])
@pytest.mark.parametrize("stop", ["\n", '"', "a\nb"])
def test_what_the_format_cannot_represent_is_a_comment(config: Path, system: str, stop: str) -> None:
    description = described("mine")._replace(system=system, parameters=[("stop", stop), ("top_k", "1")])
    parsed = parse_modelfile(description.modelfile(), "Modelfile")
    assert parsed.options["top_k"] == 1
    assert parsed.options.get("system_prompt") in (system, None)
    assert parsed.options.get("stop") in ([stop], None)
    assert "# PARAMETER stop" in description.modelfile() or parsed.options["stop"] == [stop]

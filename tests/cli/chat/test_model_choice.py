"""The choice of the first model in `localinfer chat`."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from loopback_hub import Hub
from terminal import Terminal
from tiny import tiny_llama

from cli.chat import model_choice
from localinfer.errors import UsageError

OpenTerminal = Callable[..., Terminal]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Return the environment of a new user. The first suggestion is a model on a web server on loopback."""
    model = tiny_llama(tmp_path / "tiny.gguf")
    with Hub() as hub:
        hub.files["/tiny.gguf"] = model.read_bytes()
        entry = f'about = "A tiny model"\nsource = "{hub.url}/tiny.gguf"\nsize = 1_500_000\nsuggested = true\n'
        (tmp_path / "models.toml").write_text(f"[models.smollm2]\n{entry}[models.local]\npath = 'tiny.gguf'\n")
        yield {
            "LOCALINFER_CONFIG_DIR": str(tmp_path),
            "LOCALINFER_DATA_DIR": str(tmp_path / "data"),
            "NO_PROXY": "*",
        }


@pytest.fixture
def own_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Downloaded models of the test only; kernels and the measured bandwidth are shared."""
    from localinfer import paths

    cache, shared = tmp_path / "cache", paths.jit_dir()
    cache.mkdir(mode=0o700)
    (cache / "jit").symlink_to(shared)
    monkeypatch.setenv("LOCALINFER_CACHE_DIR", str(cache))


@pytest.mark.usefixtures("own_models")
def test_first_chat(terminal: OpenTerminal, home: dict[str, str], environment: dict[str, str], tmp_path: Path) -> None:
    """The list is shown once. Wrong answers are explained, and the model is downloaded."""
    home |= {"LOCALINFER_CACHE_DIR": str(tmp_path / "cache")}
    t = terminal("chat", **home)
    shown = t.expect("Number or name [", 60)
    assert re.search(r"Which model\? This machine has [\d.]+ GiB of memory available, and reads\s\d+ GB/s", shown)
    assert re.search(r" 1  smollm2 +1.4 MiB +~\d+ tokens/s   Apache-2.0\n     A tiny model\n", shown)
    assert max(map(len, shown[shown.index("Which model") :].splitlines())) < 80  # a status line was before it
    t.type("99\n")
    t.expect("99: must be from 1 to")
    t.type("smolm\n")
    t.expect("did you mean smollm2?")
    t.type("hf:nothing\n")
    t.expect("must be hf:OWNER/REPO")
    t.type("1\n")
    t.expect("fetching smollm2: 1.4 MiB, licence: Apache-2.0")
    t.expect("smollm2 is the default model from now on")
    t.expect("smollm2: context")
    t.expect("> ")
    t.ctrl("d")
    assert t.wait() == 0
    assert (tmp_path / "data" / "default-model").read_text() == "smollm2\n"

    t = terminal("chat", **home)
    assert "Which model" not in t.expect("smollm2: context")
    t.expect("> ")
    t.ctrl("d")
    assert t.wait() == 0

    t = terminal("chat", "--choose", **home)
    t.expect("Number or name [")
    assert " 1  smollm2               1.4 MiB" in t.text
    assert "Apache-2.0, on this machine" in t.text
    t.type("local\n")
    t.expect("local: context")
    t.expect("> ")
    t.ctrl("d")
    assert t.wait() == 0
    assert (tmp_path / "data" / "default-model").read_text() == "local\n"


@pytest.mark.usefixtures("own_models")
def test_failed_download_asks_again(terminal: OpenTerminal, home: dict[str, str], tmp_path: Path) -> None:
    """Without a network, the models on this machine remain, and the first of them is the default answer."""
    registry = tmp_path / "models.toml"
    registry.write_text(re.sub(r'source = "[^"]+', 'source = "http://127.0.0.1:9/tiny.gguf', registry.read_text()))
    t = terminal("chat", **home, LOCALINFER_CACHE_DIR=str(tmp_path / "cache"))
    t.expect("Number or name [", 60)
    t.type("1\n")
    shown = t.expect("Number or name [local]: ")
    failure = " ".join(shown[shown.index("error: ") :].split())
    assert re.match(r"error: \S+: \[Errno \d+\] Connection refused; choose another model, or the same", failure)
    assert "On this machine: local\n" in shown
    t.type("\n")
    t.expect("local: context")
    t.expect("> ")
    t.ctrl("d")
    assert t.wait() == 0
    assert (tmp_path / "data" / "default-model").read_text() == "local\n"


def test_interrupt_chooses_nothing(terminal: OpenTerminal, home: dict[str, str], tmp_path: Path) -> None:
    for key in "cd":
        t = terminal("chat", "-p", "Hello", **home)
        t.expect("Number or name [", 60)
        t.ctrl(key)
        assert t.wait() == 130
    assert not (tmp_path / "data" / "default-model").exists()


def test_no_question_without_a_terminal_or_if_the_model_is_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(model_choice, "choose_default_model", lambda **_: "chosen")
    monkeypatch.setenv("LOCALINFER_DATA_DIR", str(tmp_path))
    for is_terminal, default in ((False, "smollm2"), (True, "chosen")):
        monkeypatch.setattr("sys.stdin.isatty", lambda is_terminal=is_terminal: is_terminal)
        monkeypatch.setattr("sys.stderr.isatty", lambda: True)
        assert model_choice.select_model("named", "", again=False) == "named"
        assert model_choice.select_model(None, "resumed", again=False) == "resumed"
        assert model_choice.select_model(None, "", again=False) == default
    assert model_choice.select_model(None, "resumed", again=True) == "chosen"
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert model_choice.select_model(None, "", again=False) == "smollm2"


@pytest.mark.parametrize(("named", "problem"), [("x", "cannot be combined with MODEL"), (None, "requires a terminal")])
def test_choose_requires_a_terminal(named: str | None, problem: str) -> None:
    with pytest.raises(UsageError, match=f"^--choose: {problem}$"):
        model_choice.select_model(named, "", again=True)

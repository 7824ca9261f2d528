"""Real command lines of all tools of llama.cpp and of Ollama, behind `localinfer`.

Each runs until a model would be loaded, downloaded or removed. The tests of the commands run them to the end.
"""

import shlex
import sys
from pathlib import Path

import pytest
from locations import DATA

from cli import __main__
from cli.chat import open_model as chat
from cli.files import text_input
from cli.generation import embed, generate
from cli.machine import doctor
from cli.measure import batched_bench, bench, imatrix, perplexity
from cli.models import gguf_split, inspect, tokenize
from cli.models import store as models
from cli.quantize import command as quantize
from cli.server import running, serve
from localinfer.errors import LocalInferError
from localinfer.gguf import imatrix_file
from localinfer.hub import resolve

FILES = (
    "model.gguf", "second.gguf", "draft.gguf", "prompt.txt", "list.gbnf", "template.jinja", "logits.bin",
)  # fmt: skip
MODEL_USERS = {  # module: its function that loads, finds, downloads or removes a model
    chat: "open_model", generate: "open_model", embed: "open_model", inspect: "find_or_fetch",
    perplexity: "open_engine", imatrix: "open_engine", tokenize: "find_or_fetch", bench: "find_or_fetch",
    batched_bench: "find_or_fetch", gguf_split: "find_or_fetch", quantize: "open_source", serve: "require_extra",
    models: "confirm",
}  # fmt: skip
REFUSED = {  # part of a command line: exit code; docs/command-line.md has the reasons
    "--ppl-stride 512": 3,
    "-f prompt.txt --kl-divergence-base": 3,
    "--kl-divergence-base logits.bin --kl-divergence": 3,
}
LINES = [line for line in (DATA / "tool_command_lines.txt").read_text().splitlines() if line and line[0] != "#"]


class ModelWanted(BaseException):
    """Raised where a model would be used."""


@pytest.fixture
def stopped_at_models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def stop(*_: object, **__: object) -> None:
        raise ModelWanted

    for module, name in MODEL_USERS.items():
        monkeypatch.setattr(module, name, stop)
    monkeypatch.setattr(models, "fetch_model", stop)
    monkeypatch.setattr(imatrix_file, "read_imatrix", stop)
    monkeypatch.setattr(resolve, "plan_removal", stop)
    for name in ("read_stdin", "read_extra_stdin"):
        monkeypatch.setattr(text_input, name, lambda: "text")
    monkeypatch.setattr(doctor, "CHECKS", {})
    for variable in ("LOCALINFER_CONFIG_DIR", "LOCALINFER_DATA_DIR", "LOCALINFER_CACHE_DIR"):
        monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in FILES:
        (tmp_path / name).write_text("text")
    (tmp_path / "Modelfile").write_text("FROM ./model.gguf\nPARAMETER temperature 1\nSYSTEM You are Mario.\n")
    (tmp_path / "models.toml").write_text('[models.smollm2]\npath = "model.gguf"\n')
    monkeypatch.setattr(running.ServerOptions, "request", lambda *_: {"models": []})
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "model.gguf").touch()


def run(line: str) -> int:
    try:
        return __main__.dispatch(shlex.split(line))
    except ModelWanted:
        return 0
    except LocalInferError as error:
        print(error, file=sys.stderr)
        return error.exit_code


def test_number_of_lines() -> None:
    assert len(set(LINES)) == 150
    assert len(REFUSED) <= 5


@pytest.mark.usefixtures("stopped_at_models")
@pytest.mark.parametrize("line", LINES)
def test_line(line: str) -> None:
    expected = next((code for part, code in REFUSED.items() if part in line), 0)
    assert run(line) == expected

"""Real command lines of llama-cli, llama-completion and Ollama: none fails because of a flag that changes no answer.

Each runs until a model would be loaded.
"""

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from locations import DATA
from make_command_line_page import PAGE, page

from cli import __main__
from cli.app import build_program
from cli.arguments.translation import Redirect, translate
from cli.chat import open_model as chat
from cli.generation import generate
from cli.machine import doctor
from cli.models import inspect
from localinfer.errors import UnsupportedError, UsageError

OURS = {"llama-cli": ["chat"], "llama-completion": ["generate"], "ollama": []}
FILES = ("model.gguf", "prompt.txt", "system.txt", "list.gbnf", "template.jinja", "picture.png")
ACCEPTED, REFUSED_LINES = (
    [line for line in part.splitlines() if line and not line.startswith("#")]
    for part in (DATA / "command_lines.txt").read_text().split("# --- refused")
)


class Reached(BaseException):
    """Raised where a model would be loaded or inspected."""


class Screen:
    """A stdin that is a terminal."""

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        raise OSError


@pytest.fixture
def in_a_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def reach(*_: object) -> None:
        raise Reached

    monkeypatch.setattr(sys, "stdin", Screen())
    monkeypatch.setattr(chat, "open_model", reach)
    monkeypatch.setattr(generate, "open_model", reach)
    monkeypatch.setattr(inspect, "inspect", reach)
    monkeypatch.setattr(doctor, "CHECKS", {})
    monkeypatch.chdir(tmp_path)
    for name in FILES:
        (tmp_path / name).write_text("text")
    (tmp_path / "schema.json").write_text("{}")


def run(line: str) -> int:
    program, *words = shlex.split(line)
    try:
        return __main__.dispatch([*OURS[program], *words])
    except Reached:
        return 0
    except UnsupportedError as error:
        return error.exit_code


def test_at_least_two_hundred_command_lines() -> None:
    assert len(set(ACCEPTED)) >= 200


@pytest.mark.usefixtures("in_a_terminal")
@pytest.mark.parametrize("line", ACCEPTED)
def test_line(line: str) -> None:
    assert run(line) == 0


@pytest.mark.usefixtures("in_a_terminal")
@pytest.mark.parametrize("line", REFUSED_LINES[1:])
def test_refused_line(line: str) -> None:
    """An unsupported flag that changes the answer is an error."""
    assert run(line) == UnsupportedError.exit_code


# --- each flag by itself ---

REFUSED = ("--docker-repo",)  # names a model in a registry that is not supported


def flags() -> Iterator[tuple[list[str], int, str]]:
    """Yield the names of each flag, the number of its values, and the localinfer command."""
    for line in (DATA / "llama_cpp_flags.txt").read_text().splitlines()[1:]:
        names, values, commands = (field.split() for field in line.split("|"))
        yield from ((names, int(values[0]), command) for command in commands)


@pytest.mark.parametrize(("names", "values", "command"), list(flags()))
def test_flag(names: list[str], values: int, command: str) -> None:
    """The flag is accepted with the number of values it has in llama.cpp, and is not split."""
    program = build_program([command]).commands[command]
    with program.make_context(command, [], resilient_parsing=True, help_option_names=["-h", "--help"]) as context:
        context.resilient_parsing = False
        described = program.spec(context)
    for name in names:
        try:
            line = translate([name, *["1"] * values, "behind"], described)
            assert line.words[-1] == "behind"
        except (Redirect, UnsupportedError):
            pass
        except UsageError:
            assert set(REFUSED) & set(names)


def test_documentation_is_up_to_date() -> None:
    """If not: python tests/making/make_command_line_page.py"""
    text = PAGE.read_text()
    assert page(text) == text

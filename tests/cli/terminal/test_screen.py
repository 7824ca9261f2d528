"""Progress and status lines on stderr."""

import ast
import io
import os
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from locations import CHECKOUT

from cli.terminal import screen

# Modules that write styles and cursor movements of their own. They pass texts through `terminal_text` first.
DRAWING_MODULES = {
    "terminal/screen.py", "terminal/token_coloring.py", "terminal/pictures.py", "terminal/diffusion_screen.py",
    "arguments/completion.py",
    "chat/display/answer.py", "chat/display/live_region.py", "chat/display/token_table.py", "chat/resumed.py",
    "chat/slash_commands/commands.py",
}  # fmt: skip


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def drawn(self) -> list[str]:
        """Return the lines drawn since the last call; "" is an erased line."""
        value = self.getvalue()
        self.seek(0)
        self.truncate()
        return [each.removesuffix("\x1b[K") for each in value.split("\r")[1:]]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> FakeTerminal:
    terminal = FakeTerminal()
    monkeypatch.setattr(screen, "sys", SimpleNamespace(stderr=terminal))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("quant.jit.compiler_pool.usable_cores", lambda: 2)
    return terminal


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Yield a list whose sum is the time in seconds."""
    ticks = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: sum(ticks))
    return ticks


class TestStatus:
    def test_compiling_is_shown_from_the_beginning(self, terminal: FakeTerminal, clock: list[float]) -> None:
        status = screen.Status()
        with status.busy("loading"):
            for done in range(3):
                status("compile", done, 3)
                clock.append(1.0)
            assert terminal.drawn() == [
                f"compiling kernels for this CPU (once): {done} of 3, about 0:0{seconds} left"
                for done, seconds in enumerate((2, 2, 1))
            ]
            status("compile", 3, 3)
        assert terminal.drawn() == [""]

    def test_time_left_for_kernels_in_the_background(self, terminal: FakeTerminal, clock: list[float]) -> None:
        """Kernels that were compiled before anybody waited say nothing about the speed."""
        status = screen.Status()
        status("compile_rest", 10, 20)
        clock.append(6.0)
        status("compile_rest", 18, 20)
        assert terminal.drawn()[-1] == "compiling kernels for long prompts (once): 18 of 20, about 0:01 left"

    def test_download(self, terminal: FakeTerminal, clock: list[float]) -> None:
        status = screen.Status()
        status("download", 0, 8 << 20)
        clock.append(2.0)
        status("download", 4 << 20, 8 << 20)
        bar = "█" * 10 + "░" * 10
        assert terminal.drawn()[-1] == f"{bar}  50 %  4.0 MiB of 8.0 MiB  2.0 MiB/s  0:02 left"
        assert len(screen.download_line(10_000 << 20, 12_000 << 20, 100 << 20)) < 80

    def test_fast_prefill_is_not_shown(
        self, terminal: FakeTerminal, clock: list[float]
    ) -> None:
        status = screen.Status()
        for done in (0, 512, 600):
            status("prefill", done, 600)
            clock.append(0.1)
        assert terminal.drawn() == []

    def test_long_prompt(self, terminal: FakeTerminal, clock: list[float]) -> None:
        status = screen.Status()
        for done in (0, 512, 1024, 1100):
            status("prefill", done, 1100)
            clock.append(1.0)
        assert terminal.drawn() == [
            "processing the prompt: 512 of 1,100 tokens",
            "processing the prompt: 1,024 of 1,100 tokens",
            "",
        ]

    def test_long_file_read(self, terminal: FakeTerminal, clock: list[float]) -> None:
        status = screen.Status()
        for done in (1 << 20, 512 << 20, 1100 << 20):
            status("read", done, 1100 << 20)
            clock.append(1.0)
        assert terminal.drawn() == ["loading the model: 512.0 MiB of 1100.0 MiB", ""]

    def test_not_redrawn_too_often(self, terminal: FakeTerminal, clock: list[float]) -> None:
        status = screen.Status()
        for done in range(100):
            status("download", done, 100)
            clock.append(0.01)
        assert 9 <= len(terminal.drawn()) <= 11

    def test_line_fits(
        self, terminal: FakeTerminal, clock: list[float], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole = "compiling kernels for this CPU (once): 0 of 2, about 0:01 left"
        for columns, shown in [(10, "compiling"), (1, ""), (0, whole)]:
            monkeypatch.setattr(screen, "columns", lambda columns=columns: columns or 80)
            screen.Status()("compile", 0, 2)
            assert terminal.drawn() == [shown]

    def test_label_before_the_first_report(
        self, terminal: FakeTerminal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(screen, "DELAY_SECONDS", 0.0)
        status = screen.Status()
        with status.busy("loading x"):
            while not terminal.getvalue():
                pass
        assert terminal.drawn() == ["loading x ...", ""]


class TestPlain:
    """If lines cannot be redrawn, each long stage prints one line."""

    @pytest.mark.parametrize("term", ["dumb", ""])
    def test_dumb_terminal(
        self, terminal: FakeTerminal, monkeypatch: pytest.MonkeyPatch, term: str
    ) -> None:
        monkeypatch.setenv("TERM", term or "xterm")
        if not term:
            monkeypatch.setattr(terminal, "isatty", lambda: False)
        status = screen.Status()
        with status.busy("loading"):
            for stage in ("download", "compile", "prefill"):
                for done in range(3):
                    status(stage, done, 2)
        assert terminal.getvalue() == "compiling kernels for this CPU (once): 0 of 2, about 0:01 left\n"

    def test_nothing_to_compile(self, terminal: FakeTerminal, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TERM", "dumb")
        screen.Status()("compile", 0, 0)
        assert terminal.getvalue() == ""


class TestColour:
    def test_statistics_are_dim(self, terminal: FakeTerminal) -> None:
        screen.note_dim("x")
        assert terminal.getvalue() == "\x1b[2mx\x1b[0m\n"

    @pytest.mark.parametrize("setting", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
    def test_no_colour(
        self, terminal: FakeTerminal, monkeypatch: pytest.MonkeyPatch, setting: dict[str, str]
    ) -> None:
        monkeypatch.setattr(os, "environ", os.environ | setting)
        screen.note_dim("x")
        assert terminal.getvalue() == "x\n"


class TestLines:
    """On a terminal, lines are wrapped between words."""

    def test_between_words(self, terminal: FakeTerminal, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(screen, "columns", lambda: 24)
        screen.note_wrapped("/help    shows what else there is", hanging=9)
        assert terminal.getvalue() == "/help    shows what\n         else there is\n"

    def test_narrow_terminal_no_hanging_indent(self, terminal: FakeTerminal, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(screen, "columns", lambda: 12)
        screen.note_wrapped("/help    shows it", hanging=9)
        assert terminal.getvalue() == "/help\n  shows it\n"

    def test_lines_are_not_wrapped_without_a_terminal(self, capsys: pytest.CaptureFixture[str]) -> None:
        screen.note_wrapped("word " * 50)
        assert capsys.readouterr().err == "word " * 50 + "\n"


def test_messages_are_one_printable_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert screen.error("a\nb\x1b[31m", 3) == 3
    screen.warn("c\r")
    assert capsys.readouterr().err == "error: a b\\x1b[31m\nwarning: c\\r\n"


def test_other_modules_write_through_the_screen() -> None:
    for path in (CHECKOUT / "cli").rglob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text("utf-8")))
        calls = [ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)]
        writes = {"print", "sys.stdout.write", "sys.stderr.write", "Console"} & set(calls)
        name = path.relative_to(CHECKOUT / "cli").as_posix()
        assert not writes or name in DRAWING_MODULES | {"chat/display/markdown.py"}


@pytest.mark.parametrize("name", ["note", "note_dim", "note_wrapped", "write_question", "warn"])
def test_notes_are_escaped(terminal: FakeTerminal, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    getattr(screen, name)("a\x1b]52;c;eA==\x07b\x9b2Jc\u202ed")
    assert r"a\x1b]52;c;eA==\x07b\x9b2Jc\u202ed" in terminal.getvalue()


def test_status_lines_are_escaped(terminal: FakeTerminal) -> None:
    screen.Status().show("a\x1b[9Hb\u202ec")
    assert terminal.drawn() == [r"a\x1b[9Hb\u202ec"]


def test_errors_show_the_name_that_the_user_gave(
    terminal: FakeTerminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screen, "MODEL_NAMES", {})
    screen.name_model_file("/cache/smollm2-123.gguf", "smollm2")
    screen.name_model_file("own.gguf", "own.gguf")
    screen.error("/cache/smollm2-123.gguf: general.architecture: is missing", 1)
    screen.warn("own.gguf and /cache/smollm2-123.gguf: different vocabularies")
    assert terminal.getvalue().splitlines() == [
        "error: smollm2: general.architecture: is missing", "warning: own.gguf and smollm2: different vocabularies",
    ]  # fmt: skip

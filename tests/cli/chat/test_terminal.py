"""`localinfer chat` in a pseudo-terminal. The model is `fake_model.py`."""

import json
import os
import re
import shlex
import signal
import termios
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from locations import FAKE_CLI
from terminal import Terminal

OpenTerminal = Callable[..., Terminal]
Run = Callable[..., CompletedProcess[bytes]]

pytestmark = pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals")


def test_conversation(terminal: OpenTerminal, fake_model: str) -> None:
    t = terminal("chat", fake_model)
    t.expect("tokens, 3.0 MiB. /help")
    t.expect("> ")
    t.type("Hello\n")
    t.expect("\n1: Hello\n")
    t.expect("8.0 t/s · context 5 of 2,048 tokens · first token 0.")
    t.expect("> ")
    t.type("again\n")
    t.expect("\n3: again\n")
    t.expect("> ")
    t.ctrl("D")
    assert t.wait() == 0


def test_first_interrupt_stops_the_answer(terminal: OpenTerminal, fake_model: str) -> None:
    t = terminal("chat", fake_model)
    t.expect("> ")
    t.type(" ".join(["slowly"] * 100) + "\n")
    t.expect("1: slowly slowly")
    t.ctrl("C")
    t.expect("\n> ", seconds=2)
    t.type("next\n")
    t.expect("3: next")
    t.expect("> ")
    t.ctrl("C")
    t.expect("Press Ctrl-C again")
    t.expect("> ")
    t.type("x\b")  # another key
    t.ctrl("C")
    t.expect("Press Ctrl-C again")
    t.expect("> ")
    t.type("half")
    t.expect("half")
    t.ctrl("C")  # empties the line
    t.expect("> ")
    t.ctrl("C")
    t.expect("Press Ctrl-C again")
    t.expect("> ")
    t.ctrl("C")
    assert t.wait() == 130
    assert "Traceback" not in t.text


def test_interrupt_before_the_answer_changes_nothing(terminal: OpenTerminal, fake_model: str, tmp_path: Path) -> None:
    """The status line would tell what is not in the context. Files are added to the next message."""
    (tmp_path / "a.txt").write_text("content")
    t = terminal("chat", fake_model)
    t.expect("> ")
    t.type(f"/file {tmp_path}/a.txt\n")
    t.expect("with your next message")
    t.expect("> ")
    t.type("now prefill\n")
    t.expect("\n")
    t.ctrl("C")
    assert "t/s" not in t.expect("Stopped before the answer began.")
    t.expect("> ")
    t.type("/tokens\n")
    t.expect("0 of 2,048 tokens")
    t.expect("> ")
    t.type("again\n")
    t.expect("content")
    t.expect("again")


def test_interrupt_empties_a_line(terminal: OpenTerminal, fake_model: str) -> None:
    t = terminal("chat", fake_model)
    t.expect("> ")
    t.type("half a li")
    t.expect("half a li")
    t.ctrl("C")
    t.expect("> ")
    t.type("whole\n")
    t.expect("1: whole")


def test_pasted_lines_are_one_message(terminal: OpenTerminal, fake_model: str) -> None:
    t = terminal("chat", fake_model)
    t.expect("> ")
    t.type("\x1b[200~one\ntwo\n\x1b[201~\n")
    t.expect("1: one|two\n")


def test_keys_pressed_during_an_answer_wait_for_the_prompt(terminal: OpenTerminal, fake_model: str) -> None:
    t = terminal("chat", fake_model)
    t.expect("> ")
    t.type("slowly slowly slowly slowly slowly\n")
    t.expect("1: slowly slowly")
    t.type("next\n")
    assert "next" not in t.expect("> ")
    t.expect("3: next")
    t.type("/exit\n")
    assert t.wait() == 0
    assert termios.tcgetattr(t.master)[3] & termios.ECHO


def test_single_turn(terminal: OpenTerminal, fake_model: str) -> None:
    t = terminal("run", fake_model, "Why", "so?")
    t.expect("1: Why so?\n[ 3 tokens")
    assert t.wait() == 0
    t = terminal("chat", fake_model, "-st", "-q")
    t.expect("> ")
    t.type("once\n")
    t.expect("1: once\n")
    assert t.wait() == 0
    assert "t/s" not in t.text


def test_initial_prompt_starts_a_conversation(terminal: OpenTerminal, fake_model: str) -> None:
    t = terminal("chat", fake_model, "-cnv", "-p", "first")
    t.expect("/help")
    t.expect("1: first\n")
    t.expect("> ")
    t.type("second\n")
    t.expect("3: second")


def test_an_interrupt_ends_a_single_question(terminal: OpenTerminal, fake_model: str) -> None:
    t = terminal("chat", fake_model, " ".join(["slowly"] * 100))
    t.expect("1: slowly slowly")
    t.ctrl("C")
    assert t.wait() == 130


def test_history(terminal: OpenTerminal, fake_model: str) -> None:
    t = terminal("chat", fake_model)
    t.expect("> ")
    t.type("before\n")
    t.expect("1: before")
    t.expect("> ")
    t.type("\x1b[A\n")
    t.expect("3: before")


def test_overflow_keeps_the_chat(terminal: OpenTerminal, fake_model: str) -> None:
    t = terminal("chat", fake_model)
    t.expect("> ")
    t.type("overflow\n")
    t.expect("error: context is full: --ctx-size sets a larger one (Shorten the message, or\n")
    t.expect("/set ctx_size N makes it larger)")
    t.expect("> ")
    t.type("fine\n")
    t.expect("1: fine")


def test_a_file_stays_with_a_question_that_was_not_answered(
    terminal: OpenTerminal, fake_model: str, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("note")
    t = terminal("chat", fake_model, columns=250)
    t.expect("> ")
    t.type(f"/file {tmp_path / 'notes.txt'}\n")
    t.expect("with your next message")
    t.expect("> ")
    t.type("an overflow\n")
    t.expect("The files of /file are kept for your next message")
    t.expect("> ")
    t.type("now\n")
    t.expect("note")
    t.expect("now")
    t.expect("> ")
    t.type("b\n")
    t.expect("3: b")
    t.expect("> ")
    t.type(f"/file {tmp_path / 'notes.txt'} an overflow\n")  # the Up key has the whole of it
    t.expect("context is full")
    t.expect("> ")
    t.type("c\n")
    t.expect("5: c")


def test_an_interrupted_command_does_not_count_as_leaving(terminal: OpenTerminal, fake_model: str) -> None:
    t = terminal("chat", fake_model)
    t.expect("> ")
    t.type("why\n")
    t.expect("1: why")
    t.expect("> ")
    for _ in range(2):
        t.type("/why\n")
        t.expect("/why\n")
        t.ctrl("C")
        t.expect("Stopped.")
        t.expect("> ")
    assert "exit" not in t.text.rpartition("/why")[2]
    t.type("two\n")
    t.expect("3: two")


def test_terminal_gets_no_control_sequences(terminal: OpenTerminal, fake_model: str) -> None:
    t = terminal("chat", fake_model)
    t.expect("> ")
    t.type("escape wide\n")
    t.expect("\\x1b]0;title\\x07 😀")


@pytest.mark.parametrize(
    "changed", [{"TERM": "dumb"}, {"NO_COLOR": "1"}, {"columns": 1}, {"columns": 0}], ids=str
)
def test_odd_terminals(terminal: OpenTerminal, fake_model: str, changed: dict[str, str]) -> None:
    t = terminal("chat", fake_model, **changed)
    t.expect(">")  # in one column, the text after it is on the next line
    t.type("x wide y\n")
    t.expect("😀 y")
    t.expect(">")
    t.ctrl("D")
    assert t.wait() == 0
    if "columns" not in changed:
        assert b"\x1b[2m" not in t.raw


def test_answer_that_fills_the_context_stays(terminal: OpenTerminal, fake_model: str) -> None:
    t = terminal("chat", fake_model)
    t.expect("> ")
    t.type("full\n")
    t.expect("1: full\n")
    t.expect("warning: The context of 2,048 tokens is full; the answer is cut off. /set")
    t.expect("context 2,048 of 2,048 tokens")
    t.expect("> ")
    t.type("next\n")
    t.expect("3: next")
    t.expect("> ")
    t.type("/undo\n")
    t.expect("removed: next")
    t.expect("> ")
    t.type("forget it\n")
    t.expect("The context of 2,048 tokens is full: 2 messages are left out of the prompt from")
    t.expect("  left out: full\n")
    t.expect("1: forget it\n")


def test_repetition_warning(terminal: OpenTerminal, fake_model: str) -> None:
    t = terminal("chat", fake_model)
    t.expect("> ")
    t.type("circles\n")
    t.expect("round round")
    t.expect("The answer repeats itself")


def test_markdown(terminal: OpenTerminal, fake_model: str) -> None:
    t = terminal("chat", fake_model)
    t.expect("> ")
    t.type("so **bold** `code` end\n")
    t.expect("1: so bold code end\n")
    t.expect("> ")
    assert b"\x1b[1mbold\x1b[0m" in t.raw


def test_plain(terminal: OpenTerminal, fake_model: str) -> None:
    t = terminal("chat", fake_model, "--plain")
    t.expect("> ")
    t.type("so **bold** end\n")
    t.expect("\n1: so **bold** end\n")


def test_reasoning_is_collapsed(terminal: OpenTerminal, fake_model: str) -> None:
    t = terminal("chat", fake_model)
    t.expect("> ")
    t.type("slowly think\n")
    t.expect("thinking ...")
    t.expect("Let me see")
    t.expect("thought for 0.")
    t.expect("1: slowly think\n")
    assert "<think" not in t.text


def test_reasoning_is_not_output(fake_cli: Run, fake_model: str) -> None:
    assert fake_cli("chat", fake_model, stdin=b"think").stdout == b"1: think"


def test_reasoning_is_a_field(fake_cli: Run, fake_model: str) -> None:
    done = fake_cli("chat", fake_model, "think", "--json")
    assert [json.loads(done.stdout)[name] for name in ("text", "reasoning")] == ["1: think", "Let me see."]


def test_answers_in_a_file_end_with_a_newline(environment: dict[str, str], fake_model: str, tmp_path: Path) -> None:
    command = " ".join([*map(shlex.quote, [*FAKE_CLI, "chat", fake_model]), ">", str(tmp_path / "out")])
    t = Terminal(["sh", "-c", command], environment)
    for message in ("one", "two"):
        t.expect("> ")
        t.type(message + "\n")
        t.expect("first token")
    t.expect("> ")
    t.ctrl("D")
    assert t.wait() == 0
    assert (tmp_path / "out").read_text() == "1: one\n3: two\n"
    t.close()


@pytest.mark.parametrize("message", ["/etc/hosts is what?", "/ is the root", "/tmp"])
def test_path_is_not_a_command(terminal: OpenTerminal, fake_model: str, message: str) -> None:
    t = terminal("chat", fake_model)
    t.expect("> ")
    t.type(message + "\n")
    t.expect(f"1: {message}")


def test_keys_pressed_while_kernels_compile_wait(terminal: OpenTerminal, fake_model: str) -> None:
    t = terminal("chat", fake_model)
    t.expect("compiling")
    t.type("one\ntwo\n")
    t.expect("1: one\n")
    t.expect("3: two\n")
    assert t.text.index("one") > t.text.index("> ")


def test_history_of_another_chat(terminal: OpenTerminal, fake_model: str, environment: dict[str, str]) -> None:
    t = terminal("chat", fake_model, LOCALINFER_DATA_DIR=str(Path(fake_model).parent / "data"))
    t.expect("> ")
    t.type("before\n")
    t.expect("1: before")
    t.expect("> ")
    t.ctrl("D")
    assert t.wait() == 0
    history = Path(fake_model).parent / "data" / "history"
    assert history.stat().st_mode & 0o777 == 0o600
    t = terminal("chat", fake_model, LOCALINFER_DATA_DIR=str(history.parent))
    t.expect("> ")
    t.ctrl("R")
    t.type("bef\r\r")
    t.expect("1: before")


def test_external_editor(terminal: OpenTerminal, fake_model: str, tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\necho from the editor > $1\n")
    editor.chmod(0o700)
    t = terminal("chat", fake_model, EDITOR=str(editor), VISUAL="")
    t.expect("> ")
    t.ctrl("G")
    t.expect("from the editor")
    t.type("\n")
    t.expect("1: from the editor")


def test_echo_is_off_after_stop_and_continue(terminal: OpenTerminal, fake_model: str) -> None:
    t = terminal("chat", fake_model)
    t.expect("> ")
    t.type(" ".join(["slowly"] * 30) + "\n")
    t.expect("1: slowly slowly")
    t.process.send_signal(signal.SIGSTOP)
    with_echo = termios.tcgetattr(t.master)
    with_echo[3] |= termios.ECHO | termios.ICANON  # as a shell does
    termios.tcsetattr(t.master, termios.TCSANOW, with_echo)
    t.process.send_signal(signal.SIGCONT)
    t.expect("slowly slowly")
    assert not termios.tcgetattr(t.master)[3] & termios.ECHO


def test_terminated_at_the_prompt(terminal: OpenTerminal, fake_model: str) -> None:
    t = terminal("chat", fake_model)
    t.expect("> ")
    t.process.send_signal(signal.SIGTERM)
    assert t.wait() == 128 + signal.SIGTERM
    assert termios.tcgetattr(t.master)[3] & termios.ECHO
    assert "Traceback" not in t.text


def test_piped_message(fake_cli: Run, fake_model: str) -> None:
    done = fake_cli("chat", fake_model, stdin="Grüße\n".encode())
    assert done.returncode == 0
    assert done.stdout == "1: Grüße".encode()


def test_progress_line_is_erased(terminal: OpenTerminal, fake_model: str) -> None:
    t = terminal("generate", fake_model, "-p", "hello")
    assert t.wait() == 0
    # On a busy machine, loading is slow enough to show progress.
    end = rb"\x1b\[K\r\x1b\[K"
    compiling = rb"\rcompiling kernels for this CPU \(once\): 0 of 3, about \d:\d\d left" + end
    assert re.match(compiling + rb"(\rloading [^\r]+" + end + rb")?hello\r\n", t.raw)


def test_colours_of_tokens(terminal: OpenTerminal, fake_model: str) -> None:
    colours = {"COLORTERM": "truecolor", "NO_COLOR": ""}
    t = terminal("chat", fake_model, "--color-by", "prob", "so?", **colours)
    t.expect("1: so?")
    assert t.wait() == 0
    assert b"\x1b[38;2;" in t.raw
    t = terminal("chat", fake_model, "--color-by", "entropy", "so?", **colours | {"NO_COLOR": "1"})
    t.expect("1: so?")
    assert t.wait() == 0
    assert b"[38;" not in t.raw


def test_no_colours_in_a_pipe(fake_cli: Run, fake_model: str) -> None:
    done = fake_cli("chat", fake_model, "--color-by", "prob", "so?", FORCE_COLOR="1")
    assert (done.stdout, done.returncode) == (b"1: so?", 0)
    assert fake_cli("chat", fake_model, "--color-by", "size", "so?").returncode == 2

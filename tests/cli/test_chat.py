"""`localinfer chat` as people meet it, in a pseudo-terminal. The model is `talker.py`."""

import os
import termios
from collections.abc import Callable
from subprocess import CompletedProcess

import pytest
from terminal import Terminal

OpenTerminal = Callable[..., Terminal]
Run = Callable[..., CompletedProcess[bytes]]

pytestmark = pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals")


def test_conversation(terminal: OpenTerminal, own: str) -> None:
    t = terminal("chat", own)
    t.expect("/help")
    t.expect("> ")
    t.type("Hello\n")
    t.expect("\n1: Hello\n")
    t.expect("[ 2 tokens, 8.0 t/s | prompt 3 tokens (1 reused), 4.0 t/s | stop, seed 42 ]\n> ")
    t.type("again\n")
    t.expect("\n3: again\n")
    t.expect("> ")
    t.press("D")
    assert t.code() == 0


def test_commands(terminal: OpenTerminal, own: str) -> None:
    t = terminal("chat", own)
    t.expect("> ")
    for typed, shown in [
        ("/regen", "there is no answer yet"),
        ("one", "1: one"),
        ("/regen", "1: one"),
        ("two", "3: two"),
        ("/clear", "the conversation is forgotten"),
        ("three", "1: three"),
        ("/system be brief", "a new conversation"),
        ("four", "1: four (be brief)"),
        ("/help", "/regen"),
        ("/nonsense x", "/nonsense is no command"),
        ("  ", ""),
        ("five\\\nsix", "3: five|six (be brief)"),
    ]:
        t.type(typed + "\n")
        t.expect(shown)
        t.expect("> ")
    t.type("/exit\n")
    assert t.code() == 0


def test_first_interrupt_stops_the_answer(terminal: OpenTerminal, own: str) -> None:
    t = terminal("chat", own)
    t.expect("> ")
    t.type(" ".join(["slowly"] * 100) + "\n")
    t.expect("1: slowly slowly")
    t.press("C")
    t.expect("\n> ", seconds=2)
    t.type("next\n")
    t.expect("3: next")
    t.expect("> ")
    t.press("C")
    assert t.code() == 130
    assert "Traceback" not in t.seen


def test_interrupt_empties_a_line(terminal: OpenTerminal, own: str) -> None:
    t = terminal("chat", own)
    t.expect("> ")
    t.type("half a li")
    t.expect("half a li")
    t.press("C")
    t.expect("> ")
    t.type("whole\n")
    t.expect("1: whole")


def test_pasted_lines_are_one_message(terminal: OpenTerminal, own: str) -> None:
    t = terminal("chat", own)
    t.expect("> ")
    t.type("\x1b[200~one\ntwo\n\x1b[201~\n")
    t.expect("1: one|two\n[")


def test_keys_pressed_during_an_answer_wait_for_the_prompt(terminal: OpenTerminal, own: str) -> None:
    t = terminal("chat", own)
    t.expect("> ")
    t.type("slowly slowly slowly slowly slowly\n")
    t.expect("1: slowly slowly")
    t.type("next\n")
    assert "next" not in t.expect("> ")
    t.expect("3: next")
    t.type("/exit\n")
    assert t.code() == 0
    assert termios.tcgetattr(t.master)[3] & termios.ECHO


def test_one_answer_and_out(terminal: OpenTerminal, own: str) -> None:
    t = terminal("run", own, "Why", "so?")
    t.expect("1: Why so?\n[ 3 tokens")
    assert t.code() == 0
    t = terminal("chat", own, "-st", "-q")
    t.expect("> ")
    t.type("once\n")
    t.expect("1: once\n")
    assert t.code() == 0
    assert "t/s" not in t.seen


def test_a_conversation_that_begins_with_a_question(terminal: OpenTerminal, own: str) -> None:
    t = terminal("chat", own, "-cnv", "-p", "first")
    t.expect("1: first\n")
    t.expect("/help")
    t.expect("> ")
    t.type("second\n")
    t.expect("3: second")


def test_an_interrupt_ends_a_single_question(terminal: OpenTerminal, own: str) -> None:
    t = terminal("chat", own, " ".join(["slowly"] * 100))
    t.expect("1: slowly slowly")
    t.press("C")
    assert t.code() == 130


def test_history(terminal: OpenTerminal, own: str) -> None:
    t = terminal("chat", own)
    t.expect("> ")
    t.type("before\n")
    t.expect("1: before")
    t.expect("> ")
    t.type("\x1b[A\n")
    t.expect("3: before")


def test_overflow_keeps_the_chat(terminal: OpenTerminal, own: str) -> None:
    t = terminal("chat", own)
    t.expect("> ")
    t.type("overflow\n")
    t.expect("error: context is full: --ctx-size sets a larger one (/clear begins anew)")
    t.expect("> ")
    t.type("fine\n")
    t.expect("1: fine")


def test_terminal_gets_no_control_sequences(terminal: OpenTerminal, own: str) -> None:
    t = terminal("chat", own)
    t.expect("> ")
    t.type("escape wide\n")
    t.expect("\\x1b]0;title\\x07 😀")


@pytest.mark.parametrize(
    "changed", [{"TERM": "dumb"}, {"NO_COLOR": "1"}, {"columns": 1}, {"columns": 0}], ids=str
)
def test_odd_terminals(terminal: OpenTerminal, own: str, changed: dict[str, str]) -> None:
    t = terminal("chat", own, **changed)
    t.expect("> ")
    t.type("x wide y\n")
    t.expect("😀 y")
    t.expect("> ")
    t.press("D")
    assert t.code() == 0
    if "columns" not in changed:
        assert b"\x1b[2m" not in t.raw


def test_piped_message(talker: Run, own: str) -> None:
    done = talker("chat", own, stdin="Grüße\n".encode())
    assert done.returncode == 0
    assert done.stdout == "1: Grüße".encode()


def test_progress_line_is_gone_in_the_end(terminal: OpenTerminal, own: str) -> None:
    t = terminal("generate", own, "-p", "hello")
    assert t.code() == 0
    assert t.raw.startswith(b"\rcompiling kernels (once) 0/3\x1b[K\r\x1b[Khello\r\n")

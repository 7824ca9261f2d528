"""Slash commands and the line editor of `localinfer chat`, in a pseudo-terminal. The model is `fake_model.py`."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from terminal import Terminal

from cli.chat.input.input_display import InputDisplay

OpenTerminal = Callable[..., Terminal]

pytestmark = pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals")


def test_commands(terminal: OpenTerminal, fake_model: str) -> None:
    t = terminal("chat", fake_model)
    t.expect("> ")
    for typed, shown in [
        ("/regen", "there is no answer yet"),
        ("one", "1: one"),
        ("/regen", "1: one"),
        ("two", "3: two"),
        ("/undo", "removed: two; /redo restores it"),
        ("/redo", "restored: 3: two (4 messages)"),
        ("/redo", "there is nothing to restore"),
        ("/redo x", "/redo: x: must be a number from 1"),
        ("/clear", "started a new conversation; the last one is saved as session"),
        ("/undo", "back in session 20"),
        ("/redo 9", "there is nothing to restore"),
        ("/regen", "3: two"),
        ("/undo", "removed: two"),
        ("2b", "3: 2b"),
        ("/undo", "removed: 2b"),
        ("2c", "3: 2c"),
        ("/redo", "restored: 3: 2b (4 messages; /redo N restores one of 2 other versions)"),
        ("/redo 2", "restored: 3: two (4 messages; /redo N restores one of 2 other versions)"),
        ("more", "5: more"),
        ("/new", "started a new conversation; the last one is saved as session"),
        ("three", "1: three"),
        ("/system be brief", "started a new conversation"),
        ("four", "1: four (be brief)"),
        ("/help", "/regen"),
        ("/nonsense x", "/nonsense: no such command; /help lists the commands"),
        ("/sytem", "/sytem: no such command; did you mean /system?"),
        ("/system", "be brief"),
        ("  ", ""),
        ("five\\\nsix", "3: five|six (be brief)"),
    ]:
        t.type(typed + "\n")
        t.expect(shown)
        t.expect("> ")
    t.type("/exit\n")
    assert t.wait() == 0


def test_more_commands(terminal: OpenTerminal, fake_model: str, tmp_path: Path) -> None:
    (tmp_path / "some notes.txt").write_text("a note")
    (tmp_path / "schema.json").write_text("{}")
    t = terminal("chat", fake_model, columns=200)
    t.expect("> ")
    for typed, shown in [
        ("/undo", "there is nothing to undo"),
        ("/edit", "there is no message yet"),
        ("/copy", "there is no answer yet"),
        ("/SET temp 0.3", "temp is 0.3"),
        ("/set parameter temperature 0", "temp is 0.0"),
        ("/set temp hot", "error: temp: must be a number"),
        ("/set tmp 1", "did you mean temp?"),
        ("/set threads 9", "can only be set on the command line"),
        ("/set n 40", "n_predict is 40"),
        ("/set --max-tokens 41", "n_predict is 41"),
        ("/set max_tokns 41", "max_tokns: no such option; did you mean max_tokens?"),
        ("/set repeat-penalty 1.5", "repeat_penalty is 1.5"),
        ("/set parameter num_ctx 512", "context 512 tokens"),
        ("/set num_predict -1", "n_predict is -1"),
        ("/set c 0", "context 2,048 tokens"),
        ("/set c x", "error: ctx_size: must be an integer"),
        ("/set nothink", "think is off"),
        ("/set grammar_file /no/such/file", "error: /no/such/file: No such file or directory"),
        (f"/set json_schema_file {tmp_path}/schema.json", "\njson_schema_file is "),
        ('/set json_schema_file ""', "json_schema_file is ''"),
        ("/set stop ''", "stop is ()"),
        ('/set temp ""', "error: temp: must have a value; its default is 0.8"),
        ("/show", "seed"),
        ("/tokens", "0 of 2,048 tokens, 2,048 left"),
        ("/tokens some words", "1 tokens"),
        ("one", "1: one"),
        ("/tokens", "5 of 2,048 tokens"),
        ("/stats", "[ 2 tokens, 8.0 t/s | prompt 3 tokens (1 reused), 4.0 t/s | stop, seed 42 ]"),
        ("/copy", "clipboard"),
        (f"/file '{tmp_path}/some notes.txt' what is it", "what is it"),
        ("/file /no/such/file", "error: /no/such/file: No such file or directory"),
        ('"""two\nlines"""', "5: two|lines"),
        ("/?", "/regen"),
    ]:
        t.type(typed + "\n")
        t.expect(shown)
        t.expect("> ")
    assert "\x1b]52;c;" in t.raw.decode(errors="replace")
    t.type("/edit\n")
    t.expect("> ")
    t.expect("lines")
    t.type(" more\n")
    t.expect("5: two|lines more")
    t.expect("> ")
    t.type("/bye\n")
    assert t.wait() == 0


def test_completion(terminal: OpenTerminal, fake_model: str) -> None:
    t = terminal("chat", fake_model)
    t.expect("> ")
    t.type("/stat\t\n")
    t.expect("[ 0 tokens")
    t.expect("> ")
    t.type("/sy\t\n")  # before /sys
    t.expect("there is no system prompt")
    t.expect("> ")
    t.type("/set n_pred\t 7\n")
    t.expect("n_predict is 7")
    t.expect("> ")
    t.type("/etc/hostnam\t")  # a path
    t.expect("/etc/hostname")


def test_joined_emoji_are_edited_in_parts(terminal: OpenTerminal, fake_model: str) -> None:
    family = "\N{MAN}\u200d\N{WOMAN}\u200d\N{GIRL}"
    t = terminal("chat", fake_model)
    t.expect("> ")
    t.type(f"so {family} x")
    t.expect("so \N{MAN}\N{WOMAN}\N{GIRL} x")
    t.type("\x1b[D\x1b[Dy")
    t.expect("y")
    t.type("\n")
    t.expect(f"1: so {family}y x")
    assert "\u200d" not in t.raw.decode().partition("1: so")[0]


def test_display_of_typed_text() -> None:
    text = "a\N{WAVING HAND SIGN}\U0001f3fd\U0001f1e9\U0001f1ea\N{MAN}\u200d\N{GIRL}\u202eb"
    typed: Any = SimpleNamespace(fragments=[("", text)])
    display = InputDisplay().apply_transformation(typed)
    [(_, shown)] = display.fragments
    assert shown == "a\N{WAVING HAND SIGN}DE\N{MAN}\N{GIRL}\\u202eb"
    for at, character in enumerate(text):
        if character.isprintable() and character != "\U0001f3fd":
            assert display.display_to_source(display.source_to_display(at)) == at
    assert display.source_to_display(len(text)) == len(shown)


def test_another_model_continues(terminal: OpenTerminal, fake_model: str, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(Path(fake_model).read_bytes())
    own = {"LOCALINFER_DATA_DIR": str(tmp_path / "data")}
    t = terminal("chat", fake_model, columns=200, **own)
    for typed, shown in [
        ("one", "1: one"),
        ("/model", "this chat uses " + fake_model),
        ("/model nonsense", "error: nonsense: neither a file nor a known model"),
        ("two", "3: two"),
        (f"/model {other}", "other.gguf: context 2,048 tokens"),
        ("three", "5: three"),
        ("/show", f"model      {other}"),
    ]:
        t.expect("> ")
        t.type(typed + "\n")
        t.expect(shown)
    t.expect("> ")
    t.ctrl("D")
    assert t.wait() == 0
    t = terminal("chat", "--continue", columns=200, **own)
    t.expect(f"{other}: context")


def test_tools_are_listed_and_replaced(terminal: OpenTerminal, fake_model: str, tmp_path: Path) -> None:
    file = tmp_path / "tools.json"
    file.write_text(json.dumps([{"name": "weather", "description": "The weather\x1b[2J of a city"}]))
    t = terminal("chat", fake_model)
    for typed, shown in [
        ("/tools", "the model has no tools"),
        (f"/tools {file}", "weather  The weather\\x1b[2J of a city\nthey are run by you"),
        (f"/tools {tmp_path}/none", "error:"),
        ("/tools", "weather"),
        ("/tools off", "the model has no tools"),
    ]:
        t.expect("> ")
        t.type(typed + "\n")
        t.expect(shown)


@pytest.mark.parametrize("columns", [40, 80])
def test_why_and_branch(terminal: OpenTerminal, fake_model: str, columns: int) -> None:
    t = terminal("chat", fake_model, columns=columns)
    t.expect("> ")
    for typed, shown in [
        ("/why", "there is no answer yet"),
        ("/branch 1 x", "there is no answer yet"),
        ("one two", "1: one two"),
        ("/why", "' word 2'   25 %   ' other 0' 25 %"),
        ("/why 2", "2.0 bits of entropy."),
        ("/why 9", "error: 9: must be the number of a"),
        ("/branch 2", "error: /branch: missing token"),
        ("/branch 2 other 2", "error: /branch: other 2 ends the answer"),
        ("/branch 2 other 1", "<0> <101> 1: one two"),
        ("/branch 1 new", "<4> 1: one two"),
        ("/branch 1 'new'", "<3> 1: one two"),
        ("/branch 1 'a'b'", "is not a valid"),
    ]:
        t.type(typed + "\n")
        t.expect(shown)
        t.expect("> ")
    rows = [line for line in t.text.splitlines() if "' word " in line]
    assert max(map(len, rows)) < columns

"""Saved sessions in `localinfer chat`, in a pseudo-terminal. The model is `fake_model.py`."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from terminal import Terminal

from cli.chat import resumed

OpenTerminal = Callable[..., Terminal]

pytestmark = pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals")


def test_a_resumed_session_looks_as_it_did(terminal: OpenTerminal, fake_model: str, tmp_path: Path) -> None:
    own = {"LOCALINFER_DATA_DIR": str(tmp_path / "data")}
    t = terminal("chat", fake_model, **own)
    for question in ("one", "two", "so **bold** end", "call", "think\\\nagain"):
        t.expect("> ")
        t.type(question + "\n")
        t.expect("t/s")
    t.expect("> ")
    t.ctrl("D")
    assert t.wait() == 0
    t = terminal("chat", "--continue", **own)
    t.expect("10 messages: one")
    t.expect("/help lists the commands.\n")
    t.expect("... 2 earlier messages, which /export writes to a file\n")
    shown = t.expect("9: think|again\n> ")
    assert shown.startswith("> two\n3: two\n> so **bold** end\n5: so bold end\n> call\n7: call\n→ echo {")
    assert shown.endswith("}\n← think again\n9: think|again\n> ")
    t.type("/new\n")
    t.expect("> ")
    t.type("/undo\n")
    t.expect("back in session")
    t.expect("> ")
    t.type("more\n")
    t.expect("11: more")


@pytest.mark.parametrize(
    ("arguments", "shown"), [((), "--continue"), (("--session", "my work"), "--session 'my work'")]
)
@pytest.mark.parametrize("key", "cd")
def test_leaving_says_how_to_resume(
    terminal: OpenTerminal, fake_model: str, tmp_path: Path, arguments: tuple[str, ...], shown: str, key: str
) -> None:
    """Only after a chat that is saved."""
    own = {"LOCALINFER_DATA_DIR": str(tmp_path / "data")}
    for flags, said, expected in ((arguments, "hello\n", 1), ((), "", 0), (("--no-save",), "hello\n", 0)):
        t = terminal("chat", fake_model, *flags, **own)
        t.expect("> ")
        t.type(said)
        if said:
            t.expect("t/s")
            t.expect("> ")
        t.ctrl(key)
        if key == "c":
            t.expect("again")
            t.ctrl(key)
        assert t.wait() == (130 if key == "c" else 0)
        assert t.text.count(f"\n`localinfer chat {shown}` resumes this chat\n") == expected
        assert t.text.count("resumes this") == expected


def test_another_session_is_the_latest(terminal: OpenTerminal, fake_model: str, tmp_path: Path) -> None:
    """--continue would resume the other one."""
    t = terminal("chat", fake_model, LOCALINFER_DATA_DIR=str(tmp_path))
    t.expect("> ")
    t.type("hello\n")
    t.expect("t/s")
    [session] = (tmp_path / "sessions").iterdir()
    (tmp_path / "sessions" / "other.jsonl").write_bytes(session.read_bytes())
    t.expect("> ")
    t.ctrl("d")
    t.expect(f"`localinfer chat --session {session.stem}` resumes this chat")


def test_long_messages_of_a_resumed_session(capsys: pytest.CaptureFixture[str]) -> None:
    texts = [("user", "q"), ("assistant", "a\n" * 25)]
    messages = [{"role": role, "content": f"{n} {text}"} for n in range(4) for role, text in texts]
    assert [message["content"][:3] for message in resumed.last_turns(messages, 80, 24)] == ["3 q", "3 a"]
    assert len(resumed.last_turns(messages, 80, 48)) == 6
    assert len(resumed.last_turns(messages, 80, 500)) == 6
    resumed.write_question("line\n" * 20 + "\x1b[2Jend")
    lines = capsys.readouterr().out.splitlines()
    assert (lines[0], lines[1], lines[6], lines[-1]) == ("> line", ". line", ". ... (9 lines)", ". \\x1b[2Jend")


def test_a_session_does_not_control_the_terminal(terminal: OpenTerminal, fake_model: str, tmp_path: Path) -> None:
    own = {"LOCALINFER_DATA_DIR": str(tmp_path)}
    hostile = "a\x1b]52;c;eA==\x07b\x9b66;66Hc\u202ed"
    session = [
        {"localinfer": 1, "model": hostile, "created": hostile, "system": hostile},
        {"role": "user", "content": hostile},
        {"role": "assistant", "content": hostile, "reasoning_content": hostile},
        {"role": "user", "content": hostile},
        {"role": "assistant", "content": hostile},
    ]
    (tmp_path / "sessions").mkdir()
    (tmp_path / "sessions" / "evil.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in session))
    t = terminal("chat", fake_model, "--session", "evil", **own)
    for typed in ("/sessions", "/sessions eA==", "/load evil", "/system", "/show", "/undo", "/redo", "/why", "/exit"):
        t.expect("\n> ")
        t.type(typed + "\n")
    assert t.wait() == 0
    raw = t.raw
    for arguments in (
        ["sessions"], ["sessions", "show"], ["sessions", "export"], ["sessions", "show", "--json"],
        ["generate", fake_model, "--display-prompt", hostile],
    ):  # fmt: skip
        t = terminal(*arguments, **own)
        assert t.wait() == 0
        raw += t.raw
    assert raw.count(rb"\x1b]52;") > 20
    assert not [sent for sent in ("\x1b]52", "\x9b66", "\u202e") if sent.encode() in raw]


def test_save_load_and_export(terminal: OpenTerminal, fake_model: str, tmp_path: Path) -> None:
    document = tmp_path / "chat.md"
    # Paths fit in a line.
    t = terminal("chat", fake_model, columns=200, LOCALINFER_DATA_DIR=str(tmp_path / "data"))
    for typed, shown in [
        ("/save", "this conversation is saved as 20"),
        ("/export", "/export: missing path: /export FILE.md"),
        (f"/export {document}", "the conversation is empty"),
        ("one", "1: one"),
        ("/save first-chat", "saved as first-chat"),
        ("two", "3: two"),
        ("/save first-chat", "already saved as first-chat"),
        (f"/export {document}", "4 messages written to"),
        (f"/export {document}", "file already"),
        ("/save ../no", "a session name consists of"),
        ("/load yours", "yours: no such session"),
        ("/save second-chat", "saved as second-chat"),
        ("/undo", "removed: two"),
        ("/load", "first-chat"),
        ("/sessions", "second-chat        fake  2 messages  one\nfirst-chat         fake  4 messages  one"),
        ("/sessions 3: TWO", "first-chat  fake  4 messages  two\n/load NAME switches"),
        ("/sessions eleven", "no session contains these words"),
        ("/load first-chat", "Session first-chat, 4 messages: one"),
        ("three", "5: three"),
        ("/load second-chat", "Session second-chat, 2 messages: one"),
        ("four", "3: four"),
    ]:
        t.expect("> ")
        t.type(typed + "\n")
        t.expect(shown)
    t.expect("> ")
    t.type("/load first-c\t\n")  # completed
    t.expect("Session first-chat, 6 messages: one")
    t.expect("> ")
    t.ctrl("D")
    assert t.wait() == 0
    assert document.read_text().endswith("## User\n\ntwo\n\n## Assistant\n\n3: two\n")


def test_a_question_of_the_command_line_is_saved_with_a_name(
    fake_cli: Callable[..., subprocess.CompletedProcess[bytes]], fake_model: str, tmp_path: Path
) -> None:
    """--session saves single questions, too; without it they are not saved."""
    own = {"LOCALINFER_DATA_DIR": str(tmp_path)}
    assert fake_cli("chat", fake_model, "no name", **own).returncode == 0
    for question, answer in (("first", b"1: first"), ("second", b"3: second")):
        done = fake_cli("chat", fake_model, question, "--session", "work", **own)
        assert (done.returncode, done.stdout) == (0, answer)
    assert json.loads(fake_cli("chat", fake_model, "third", "--session", "work", "--json", **own).stdout)["text"]
    [path] = (tmp_path / "sessions").iterdir()
    assert path.name == "work.jsonl"
    assert [json.loads(line)["content"] for line in path.read_text().splitlines()[1:]] == [
        "first", "1: first", "second", "3: second", "third", "5: third"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--session", ""], "'': a session name consists of"),
        (["--session", "a/b"], "'a/b': a session name consists of"),
        (["--session", "nul"], "Windows reserves this name"),
        (["--session", "work", "--no-save"], "--session and --no-save cannot be combined"),
        (["--continue", "--no-save"], "--continue and --no-save cannot be combined"),
        (["--continue", "--session", "work"], "--continue and --session cannot be combined"),
    ],
)
def test_sessions_that_cannot_be_chosen(
    run: Callable[..., tuple[int, str, str]], arguments: list[str], error: str
) -> None:
    """They are errors before a model is looked for."""
    code, out, shown = run("chat", "no-such-model", "question", *arguments)
    assert (code, out, shown.count("\n")) == (2, "", 1)
    assert error in shown


def test_a_session_that_cannot_be_written(terminal: OpenTerminal, fake_model: str, tmp_path: Path) -> None:
    """The chat goes on, and a later message saves what is missing."""
    data = tmp_path / "data"
    data.touch()
    t = terminal("chat", fake_model, "--session", "kept", columns=300, LOCALINFER_DATA_DIR=str(data))
    t.expect("> ")
    t.type("one\n")
    t.expect("1: one")
    t.expect("the conversation continues, and the next message saves it if that is possible")
    t.expect("> ")
    data.unlink()
    t.type("two\n")
    t.expect("3: two")
    t.expect("> ")
    t.ctrl("D")
    assert t.wait() == 0
    assert t.text.count("the conversation continues") == 1
    lines = (data / "sessions" / "kept.jsonl").read_text().splitlines()
    assert [json.loads(line)["content"] for line in lines[1:]] == ["one", "1: one", "two", "3: two"]


def test_a_session_that_is_never_written_is_an_error(
    fake_cli: Callable[..., subprocess.CompletedProcess[bytes]], fake_model: str, tmp_path: Path
) -> None:
    (tmp_path / "data").touch()
    done = fake_cli("chat", fake_model, "one", "--session", "lost", LOCALINFER_DATA_DIR=str(tmp_path / "data"))
    assert (done.returncode, done.stdout) == (1, b"1: one")
    assert b"\nerror: " in done.stderr

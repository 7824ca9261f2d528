"""`localinfer sessions`: list, show, export, rm."""

import json
from pathlib import Path

import pytest

from cli import __main__
from cli.terminal import screen
from localinfer import sessions

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALINFER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("LOCALINFER_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def session() -> sessions.Session:
    session = sessions.create("smollm2", "mine")
    session.append({"role": "user", "content": "Hello"})
    session.append({"role": "assistant", "content": "Good day."})
    return session


def run(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    code = __main__.run(["sessions", *arguments])
    return code, *capsys.readouterr()


def test_no_sessions(capsys: Capture) -> None:
    assert run(capsys) == (0, "", "there are no saved sessions\n")
    assert run(capsys, "show") == (2, "", "error: there are no saved sessions\n")


@pytest.mark.usefixtures("session")
def test_list_and_show(capsys: Capture, tmp_path: Path) -> None:
    where = f"sessions are in {tmp_path / 'data' / 'sessions'}\n"
    assert run(capsys) == (0, "mine  smollm2  2 messages  Hello\n", where)
    assert run(capsys, "show") == run(capsys, "show", "mine") == (0, "> Hello\n\nGood day.\n\n", "")


@pytest.mark.parametrize("columns", [60, 80])
def test_lines_fit_the_terminal(capsys: Capture, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """Words are never cut; long texts are on lines of their own."""
    question = "Why is the sky blue, although the sun is yellow and white together at noon?"
    sessions.create("hf:owner/model-7b-instruct:Q4_K_M", "").append({"role": "user", "content": question})
    sessions.create("smollm2", "b").append({"role": "user", "content": "x" * 100})
    sessions.create("smollm2", "c").append({"role": "user", "content": "Short"})
    monkeypatch.setattr(screen, "output_columns", lambda: columns)
    lines = run(capsys)[1].splitlines()
    assert max(map(len, lines)) <= columns
    words = " ".join(lines).split()
    assert " ".join(words).endswith(" 1 messages Why is the sky blue, although the sun is yellow and white…")
    assert " ".join(words).startswith("c smollm2 1 messages Short b smollm2 1 messages xxx")


def test_json(capsys: Capture, session: sessions.Session) -> None:
    [listed] = json.loads(run(capsys, "--json")[1])
    assert (listed["name"], listed["model"], listed["n_messages"]) == ("mine", "smollm2", 2)
    assert (listed["title"], listed["line"], listed["path"]) == ("Hello", "Hello", str(session.path))
    [shown] = json.loads(run(capsys, "show", "mine", "--json")[1])
    assert shown["messages"] == session.messages


def test_search(capsys: Capture, tmp_path: Path, session: sessions.Session) -> None:
    sessions.create("smollm2", "other").append({"role": "user", "content": "Bye"})
    where = f"sessions are in {tmp_path / 'data' / 'sessions'}\n"
    session.append({"role": "user", "content": "It was\na good night."})
    assert run(capsys, "search", "good", "NIGHT") == (0, "mine  smollm2  3 messages  Good day.\n", where)
    assert run(capsys, "search", "good", "bye") == (0, "", "no session contains these words\n")
    assert [each["name"] for each in json.loads(run(capsys, "search", "bye", "--json")[1])] == ["other"]


def test_export(capsys: Capture, tmp_path: Path, session: sessions.Session) -> None:
    assert run(capsys, "export") == (0, session.markdown(), "")
    assert run(capsys, "export", "mine", "-o", str(tmp_path / "chat.md")) == (0, "", "")
    assert (tmp_path / "chat.md").read_text() == session.markdown()


def test_damaged_lines_are_reported(capsys: Capture, session: sessions.Session) -> None:
    session.path.write_bytes(session.path.read_bytes() + b"?\n")
    code, out, err = run(capsys, "show")
    assert (code, out) == (0, "> Hello\n\nGood day.\n\n")
    assert err == f"warning: {session.path}: 1 damaged lines are skipped\n"


def test_rm(capsys: Capture, session: sessions.Session) -> None:
    assert run(capsys, "rm")[0] == 2
    assert run(capsys, "rm", "mine", "--yes") == (0, "", "mine: removed\n")
    assert not session.path.exists()
    assert run(capsys, "rm", "mine", "--yes")[0] == 2


@pytest.mark.parametrize("arguments", [["erase"], ["list", "-o", "x"], ["show", "../x"], ["search"], ["rm", "--json"]])
def test_usage_errors(capsys: Capture, arguments: list[str]) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)

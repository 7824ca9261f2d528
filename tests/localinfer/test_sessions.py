"""Saved sessions: append-only files and the messages that result from them."""

import os
from pathlib import Path

import pytest

from localinfer import paths, sessions
from localinfer.errors import LocalInferError, UsageError

HELLO = {"role": "user", "content": "Hello\nyou  there"}
ANSWER = {"role": "assistant", "content": "Grüß \N{GRINNING FACE} \ud800", "ids": [1, 2]}


@pytest.fixture(autouse=True)
def temporary_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALINFER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("LOCALINFER_CACHE_DIR", str(tmp_path / "cache"))


def make_session(name: str) -> sessions.Session:
    session = sessions.create("smollm2", name)
    session.append(HELLO)
    session.append(ANSWER)
    return session


def test_messages_are_restored() -> None:
    session = make_session("mine")
    again = sessions.open_session("mine")
    assert again == session
    assert again.messages == [HELLO, ANSWER]
    assert (again.model, again.title, again.n_damaged) == ("smollm2", "Hello you there", 0)
    again.append(HELLO)
    assert sessions.open_session("mine").messages == [HELLO, ANSWER, HELLO]


def test_file_is_private() -> None:
    path = make_session("mine").path
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_no_file_before_the_first_message() -> None:
    sessions.create("smollm2")
    assert sessions.list_names() == []
    assert sessions.latest() is None
    assert not paths.data_dir().exists()


def test_rewind_keeps_the_lines_of_the_file() -> None:
    session = make_session("mine")
    session.rewind(5)
    session.rewind(1)
    session.append(ANSWER)
    assert sessions.open_session("mine").messages == session.messages == [HELLO, ANSWER]
    assert len(session.path.read_bytes().splitlines()) == 5


def test_truncated_line_loses_only_that_line() -> None:
    path = make_session("mine").path
    path.write_bytes(path.read_bytes()[:-9])
    cut = sessions.open_session("mine")
    assert (cut.messages, cut.n_damaged) == ([HELLO], 1)
    cut.append(ANSWER)
    assert sessions.open_session("mine").messages == [HELLO, ANSWER]


@pytest.mark.parametrize("line", [b"\xff\xfe", b"[1]", b'{"keep": "x"}', b"[" * 100_000, b'{"role": 1, "content": ""}'])
def test_invalid_lines_are_counted(line: bytes) -> None:
    path = make_session("mine").path
    path.write_bytes(path.read_bytes() + line + b"\n")
    assert (sessions.open_session("mine").messages, sessions.open_session("mine").n_damaged) == ([HELLO, ANSWER], 1)


@pytest.mark.parametrize("name", ["../x", ".x", "a/b", "x" * 101, "x.", "a\0", "\n", "über"])
def test_invalid_names(name: str) -> None:
    for function in sessions.open_session, lambda name: sessions.create("smollm2", name):
        with pytest.raises(UsageError, match="a session name consists of"):
            function(name)


@pytest.mark.parametrize("name", ["con", "NUL", "Com1", "aux.txt", "lpt9 .old"])
def test_names_that_windows_reserves(name: str) -> None:
    with pytest.raises(UsageError, match="Windows reserves this name for a device"):
        sessions.create("smollm2", name)
    assert sessions.validate_name(name) == name, "an existing session can be opened"


def test_existing_and_missing_names() -> None:
    make_session("mine")
    with pytest.raises(UsageError, match="mine: this session already exists"):
        sessions.create("smollm2", "mine")
    with pytest.raises(UsageError, match="yours: no such session"):
        sessions.open_session("yours")
    assert sessions.unused_name("mine") == "mine-2"
    make_session("mine-2")
    assert sessions.unused_name("mine") == "mine-3"


def test_latest_session_comes_first() -> None:
    for time, name in enumerate(("b", "a", "c")):
        os.utime(make_session(name).path, (time, time))
    assert sessions.list_names() == ["c", "a", "b"]
    make_session("d").remove()
    latest = sessions.latest()
    assert latest
    assert latest.name == "c"
    latest.rewind(0)
    assert sessions.list_names()[0] == "c"
    emptied = sessions.latest()
    assert emptied
    assert emptied.name == "a"


def test_markdown() -> None:
    session = make_session("mine")
    session.created = "2026-11-22T09:30:15+01:00"
    assert session.markdown() == (
        "# Hello you there\n\nsmollm2, 2026-11-22 09:30\n"
        "\n## User\n\nHello\nyou  there\n\n## Assistant\n\nGrüß \N{GRINNING FACE} \ud800\n"
    )


def test_pipes_and_links_to_themselves_are_skipped() -> None:
    session = make_session("mine")
    folder = session.path.parent
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "loop.jsonl").symlink_to("loop.jsonl")
    (folder / "folder.jsonl").mkdir()
    assert sessions.list_names() == ["mine"]
    assert sessions.latest() == session
    for name in ("pipe", "folder"):
        with pytest.raises(LocalInferError, match=f"{name}.jsonl: cannot be read: not a regular file"):
            sessions.open_session(name)
    with pytest.raises(LocalInferError, match=r"loop\.jsonl: cannot be read: Too many levels"):
        sessions.open_session("loop")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="modes, which do not hold for root")
def test_directory_without_write_permission() -> None:
    session = make_session("mine")
    session.path.chmod(0o400)
    with pytest.raises(LocalInferError, match="cannot be written"):
        session.append(HELLO)


@pytest.mark.skipif(os.name != "posix", reason="limits the size of files")
@pytest.mark.parametrize("limit", [0, 150])
def test_a_full_disk_leaves_no_part_of_a_message(limit: int) -> None:
    """Neither an incomplete line nor an empty file, which would occupy the name of the session."""
    import resource

    session = sessions.create("smollm2", "mine")
    if limit:
        session.append({"role": "user", "content": "Hello"})
    before = session.path.read_bytes() if limit else None
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(LocalInferError, match="cannot be written"):
            session.append({"role": "user", "content": 1000 * "x"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (session.path.read_bytes() if session.path.exists() else None) == before
    session.append({"role": "user", "content": "again"})
    assert sessions.open_session("mine").messages[-1]["content"] == "again"

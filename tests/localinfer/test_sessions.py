"""Sessions: lines that are only ever added, and what they add up to."""

import os
from pathlib import Path

import pytest

from localinfer import paths, sessions
from localinfer.errors import LocalInferError, UsageError

HELLO = {"role": "user", "content": "Hello\nyou  there"}
ANSWER = {"role": "assistant", "content": "Grüß \N{GRINNING FACE} \ud800", "ids": [1, 2]}


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALINFER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("LOCALINFER_CACHE_DIR", str(tmp_path / "cache"))


def talk(name: str) -> sessions.Session:
    session = sessions.create("smollm2", name)
    session.append(HELLO)
    session.append(ANSWER)
    return session


def test_what_was_said_is_there_again() -> None:
    session = talk("mine")
    again = sessions.named("mine")
    assert again == session
    assert again.messages == [HELLO, ANSWER]
    assert (again.model, again.title, again.damaged) == ("smollm2", "Hello you there", 0)
    again.append(HELLO)
    assert sessions.named("mine").messages == [HELLO, ANSWER, HELLO]


def test_nobody_else_reads_it() -> None:
    path = talk("mine").path
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_nothing_is_there_before_something_is_said() -> None:
    sessions.create("smollm2")
    assert sessions.names() == []
    assert sessions.latest() is None
    assert not paths.data_dir().exists()


def test_rewinding_loses_nothing_in_the_file() -> None:
    session = talk("mine")
    session.rewind(5)
    session.rewind(1)
    session.append(ANSWER)
    assert sessions.named("mine").messages == session.messages == [HELLO, ANSWER]
    assert len(session.path.read_bytes().splitlines()) == 5


def test_a_line_that_was_cut_off_costs_that_line() -> None:
    path = talk("mine").path
    path.write_bytes(path.read_bytes()[:-9])
    cut = sessions.named("mine")
    assert (cut.messages, cut.damaged) == ([HELLO], 1)
    cut.append(ANSWER)
    assert sessions.named("mine").messages == [HELLO, ANSWER]


@pytest.mark.parametrize("line", [b"\xff\xfe", b"[1]", b'{"keep": "x"}', b"[" * 100_000, b'{"role": 1, "content": ""}'])
def test_lines_that_say_nothing(line: bytes) -> None:
    path = talk("mine").path
    path.write_bytes(path.read_bytes() + line + b"\n")
    assert (sessions.named("mine").messages, sessions.named("mine").damaged) == ([HELLO, ANSWER], 1)


@pytest.mark.parametrize("name", ["../x", ".x", "a/b", "x" * 101, "x.", "a\0", "\n", "über"])
def test_names_that_no_file_should_have(name: str) -> None:
    for function in sessions.named, lambda name: sessions.create("smollm2", name):
        with pytest.raises(UsageError, match="a session's name has letters"):
            function(name)


def test_names_that_there_are_and_are_not() -> None:
    talk("mine")
    with pytest.raises(UsageError, match="mine: there is such a session already"):
        sessions.create("smollm2", "mine")
    with pytest.raises(UsageError, match="yours: there is no such session"):
        sessions.named("yours")
    assert sessions.free_name("mine") == "mine-2"
    talk("mine-2")
    assert sessions.free_name("mine") == "mine-3"


def test_the_latest_comes_first() -> None:
    for time, name in enumerate(("b", "a", "c")):
        os.utime(talk(name).path, (time, time))
    assert sessions.names() == ["c", "a", "b"]
    talk("d").remove()
    latest = sessions.latest()
    assert latest
    assert latest.name == "c"


def test_markdown() -> None:
    session = talk("mine")
    session.created = "2026-11-22T09:30:15+01:00"
    assert session.markdown() == (
        "# Hello you there\n\nsmollm2, 2026-11-22 09:30\n"
        "\n## User\n\nHello\nyou  there\n\n## Assistant\n\nGrüß \N{GRINNING FACE} \ud800\n"
    )


def test_snapshots_take_no_more_than_they_may() -> None:
    sessions.prune_snapshots()
    folder = paths.private_directory(paths.snapshots_dir())
    for time, name in enumerate("abc"):
        (folder / name).write_bytes(bytes(10))
        os.utime(folder / name, (time, time))
    sessions.prune_snapshots(25)
    assert sorted(path.name for path in folder.iterdir()) == ["b", "c"]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="modes, which do not hold for root")
def test_a_directory_that_cannot_be_written() -> None:
    session = talk("mine")
    session.path.chmod(0o400)
    with pytest.raises(LocalInferError, match="cannot be written"):
        session.append(HELLO)

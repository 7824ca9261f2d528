"""Slash commands: how their arguments are split."""

from pathlib import Path

import pytest

from cli.chat.slash_commands.commands import split_path
from localinfer.errors import UsageError


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("notes.txt", ("notes.txt", "")),
        ("notes.txt  what's this?", ("notes.txt", "what's this?")),
        ("'some notes.txt' what's this?", ("some notes.txt", "what's this?")),
        ("notes.txt\nwhat is this?", ("notes.txt", "what is this?")),
        (r"C:\Users\me\notes.txt what", (r"C:\Users\me\notes.txt", "what")),
        (r'"\\server\my files\notes.txt" what', (r"\\server\my files\notes.txt", "what")),
    ],
)
def test_path_and_question(argument: str, expected: tuple[str, str]) -> None:
    assert split_path(argument) == expected


def test_existing_path_with_spaces(tmp_path: Path) -> None:
    (tmp_path / "some notes").touch()
    assert split_path(f"{tmp_path}/some notes") == (f"{tmp_path}/some notes", "")


@pytest.mark.parametrize("argument", ["", "'notes", '"'])
def test_missing_parts(argument: str) -> None:
    with pytest.raises(UsageError, match="/file: missing"):
        split_path(argument)

"""Texts of commands that read them from files: all files count, in their order."""

from pathlib import Path

from cli.files.text_input import read_text_files
from cli.generation.embed import read_texts


def test_repeated_files(tmp_path: Path) -> None:
    names = [str(tmp_path / name) for name in ("b", "a")]
    Path(names[0]).write_text("one\n\ntwo\n")
    Path(names[1]).write_text("three\n")
    assert [*read_texts(["zero"], names, with_stdin=False)] == ["zero", "one", "two", "three"]
    assert read_text_files(names) == "one\n\ntwo\nthree"

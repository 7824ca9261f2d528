"""Texts of commands that read them from files: all files count, in their order."""

from pathlib import Path

from cli.files.text_input import is_text_file, read_text_files
from cli.generation.embed import read_texts


def test_repeated_files(tmp_path: Path) -> None:
    names = [str(tmp_path / name) for name in ("b", "a")]
    Path(names[0]).write_text("one\n\ntwo\n")
    Path(names[1]).write_text("three\n")
    assert [*read_texts(["zero"], names, with_stdin=False)] == ["zero", "one", "two", "three"]
    assert read_text_files(names) == "one\n\ntwo\nthree"


def test_text_files(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content, is_text in (
        (b"", True), ("é".encode() * 40000, True), (b"a" * 65535 + "é".encode(), True),
        (b"a\0b", False), (b"\xff\xfea", False),
    ):  # fmt: skip
        path.write_bytes(content)
        assert is_text_file(str(path)) == is_text
    assert not is_text_file(str(tmp_path / "missing"))

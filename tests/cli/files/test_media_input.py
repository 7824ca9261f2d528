"""Names of images and sounds on command lines and in typed messages."""

from pathlib import Path

import pytest

from cli.files.media_input import MediaInput, split_names, split_paths
from localinfer.errors import UsageError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in "cat.jpg", "my cat.PNG", "a,b.png", "notes.txt", "it's.png":
        (tmp_path / name).write_bytes(name.encode())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("typed", "rest", "names"),
    [
        ("{folder}/cat.jpg", "", ["cat.jpg"]),
        ("{folder}/cat.jpg What is this?", "What is this?", ["cat.jpg"]),
        ("What is {folder}/cat.jpg ?", "What is ?", ["cat.jpg"]),
        ("'{folder}/my cat.PNG' and '{folder}/cat.jpg'", "and", ["my cat.PNG", "cat.jpg"]),
        ('"{folder}/my cat.PNG"', "", ["my cat.PNG"]),
        ("{folder}/my\\ cat.PNG Who?", "Who?", ["my cat.PNG"]),
        ("file://{folder}/my%20cat.PNG Who?", "Who?", ["my cat.PNG"]),
        ("~/cat.jpg ./cat.jpg", "", ["cat.jpg", "cat.jpg"]),
        ("cat.jpg is a name here", "cat.jpg is a name here", []),
        ("Describe {folder}/missing.jpg", "Describe {folder}/missing.jpg", []),
        ("Read {folder}/notes.txt", "Read {folder}/notes.txt", []),
        ("http://x/cat.jpg", "http://x/cat.jpg", []),
        ("don't  change   /this.jpg\n\n  text", "don't  change   /this.jpg\n\n  text", []),
        ("{folder}/it\\'s.png", "", ["it's.png"]),
        ("/\0.png ~nobody/x.png", "/\0.png ~nobody/x.png", []),
    ],
)
def test_paths_in_a_typed_message(folder: Path, typed: str, rest: str, names: list[str]) -> None:
    found_rest, paths = split_paths(typed.format(folder=folder), windows=False)
    assert (found_rest, [path.name for path in paths]) == (rest.format(folder=folder), names)


def test_paths_with_backslashes(folder: Path) -> None:
    assert split_paths(f"{folder}/cat.jpg\\x", windows=True) == (f"{folder}/cat.jpg\\x", [])
    assert split_paths(f'"{folder}/my cat.PNG" Who?', windows=True) == ("Who?", [folder / "my cat.PNG"])


def test_names_separated_by_commas(folder: Path) -> None:
    assert split_names("cat.jpg,other.png", "--image") == ["cat.jpg", "other.png"]
    assert split_names('"x,y.png",cat.jpg', "--image") == ["x,y.png", "cat.jpg"]
    assert split_names("a,b.png", "--image") == ["a,b.png"]  # a file
    for wrong in "", ",", "cat.jpg,,b", "x\ny.png":
        with pytest.raises(UsageError, match=r"^--image: must be names of files, separated by commas$"):
            split_names(wrong, "--image")


def test_files_of_the_options(folder: Path) -> None:
    files = MediaInput(image=["cat.jpg,~/my cat.PNG"], audio=["a,b.png"]).read()
    assert [file.content for file in files] == [b"cat.jpg", b"my cat.PNG", b"a,b.png"]
    assert [file.option for file in files] == ["--image", "--image", "--audio"]
    with pytest.raises(UsageError, match=r"^--image: missing\.png: No such file or directory$"):
        MediaInput(image=["missing.png"]).read()
    with pytest.raises(UsageError, match=r"^--audio: .*: not a regular file$"):
        MediaInput(audio=[str(folder)]).read()

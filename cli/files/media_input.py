"""Images, sounds and videos that a command line or a typed message names."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple
from urllib.parse import unquote

import typer

from localinfer.errors import UsageError
from localinfer.escaping import printable

if TYPE_CHECKING:
    from localinfer import Model
    from localinfer.model.media_encoder import MediaInfo

VIDEO_SUFFIXES = (".mp4", ".m4v", ".mov", ".webm", ".mkv", ".avi", ".mpg", ".mpeg")
SUFFIXES = frozenset((
    ".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".heic", ".heif",
    ".wav", ".mp3", ".flac", ".ogg", ".opus",
    *VIDEO_SUFFIXES,
))  # fmt: skip
OF_VIDEOS = ("--video", "/video")  # options and commands
FILE_URL = "file://"
PATH_START = re.compile(r"/|~|\.{1,2}[/\\]|[A-Za-z]:[/\\]|file://")  # a name alone may be a word of the question
WORD = re.compile(r"""(?<!\S)(?:"([^"\n]+)"|'([^'\n]+)'|((?:\\.|[^\s"'\\])+))(?!\S)""")
WINDOWS_WORD = re.compile(r"""(?<!\S)(?:"([^"\n]+)"|'([^'\n]+)'|([^\s"']+))(?!\S)""")  # \ separates folders


class MediaFile(NamedTuple):
    """The content of a file with an image, a sound or a video, the name of the option or command that names it, and
    what it is if that does not follow from the content: an animated GIF may be a video."""

    path: Path
    content: bytes
    option: str
    kind: str = ""

    @property
    def source(self) -> object:
        """What `Model.media_info` and `Model.tokenize` take."""
        return {"type": self.kind, self.kind: self.content} if self.kind else self.content


@dataclass(frozen=True, kw_only=True)
class MediaInput:
    """Images, sounds and videos of a prompt."""

    image: Annotated[
        list[str] | None,
        typer.Option("--image", metavar="FILE,...", help="Images of the prompt, before its text; may be repeated."),
    ] = None
    audio: Annotated[
        list[str] | None,
        typer.Option("--audio", metavar="FILE,...", help="Sounds of the prompt, before its text; may be repeated."),
    ] = None
    video: Annotated[
        list[str] | None,
        typer.Option("--video", metavar="FILE,...", help="Videos of the prompt, before its text; may be repeated."),
    ] = None

    def read(self) -> list[MediaFile]:
        """Return the files. Raises UsageError for one that cannot be read."""
        return [
            read_media_file(name, option)
            for option, values in (("--image", self.image), ("--audio", self.audio), ("--video", self.video))
            for value in values or ()
            for name in split_names(value, option)
        ]


def split_names(value: str, option: str) -> list[str]:
    """Return the names in a value, which are separated by commas unless the whole value is a file."""
    if os.path.isfile(os.path.expanduser(value)):  # noqa: PTH111, PTH113  # false for every string that is no path
        return [value]
    import csv  # few command lines name several files

    try:
        names = [name.strip() for row in csv.reader([value]) for name in row]
    except csv.Error:  # a line break
        names = []
    if not names or not all(names):
        raise UsageError(f"{option}: must be names of files, separated by commas")
    return names


def read_media_file(name: str, option: str) -> MediaFile:
    """Read a file with an image, a sound or a video. Raises UsageError."""
    from localinfer.multimodal.access import MAX_BYTES, MAX_VIDEO_BYTES, read_bytes

    try:
        path = Path(name).expanduser()
    except RuntimeError as error:
        raise UsageError(f"{option}: {printable(name, 200)}: {error}") from None
    kind = "video" if option in OF_VIDEOS else ""
    may_be_video = kind or path.suffix.lower() in VIDEO_SUFFIXES
    return MediaFile(path, read_bytes(path, option, MAX_VIDEO_BYTES if may_be_video else MAX_BYTES), option, kind)


def split_paths(text: str, *, windows: bool = os.name == "nt") -> tuple[str, list[Path]]:
    """Return a typed message without the paths of images, sounds and videos in it, and these paths.

    A terminal writes the path of a file that is dropped on it with quotes, with escaped spaces, or as a file:// URL.
    """
    found: list[Path] = []
    rest = []
    end = 0
    for match in (WINDOWS_WORD if windows else WORD).finditer(text):
        path = media_path(next(filter(None, match.groups())), unescapes=bool(match[3]) and not windows)
        if path is not None:
            found.append(path)
            rest.append(text[end : match.start()])
            end = match.end()
    return joined([*rest, text[end:]]) if found else text, found


def joined(pieces: Sequence[str]) -> str:
    """Return what is left of a text, with one space where paths were."""
    return " ".join(filter(None, map(str.strip, pieces)))


def media_path(word: str, *, unescapes: bool) -> Path | None:
    """Return the path of an existing image, sound or video that a word is, or None."""
    if not PATH_START.match(word):
        return None
    name = unquote(word.removeprefix(FILE_URL)) if word.startswith(FILE_URL) else word
    name = re.sub(r"\\(.)", r"\1", name) if unescapes else name
    if Path(name).suffix.lower() not in SUFFIXES:
        return None
    try:
        path = Path(name).expanduser()
        return path if path.is_file() else None
    except (OSError, ValueError, RuntimeError):
        return None


def media_info(file: MediaFile, model: "Model") -> "MediaInfo":
    """Return the size and the tokens of a file.

    Raises UnsupportedError if the model cannot read it, UsageError if it is damaged.
    """
    return model.media_info(file.source, name=f"{file.option}: {file.path}")

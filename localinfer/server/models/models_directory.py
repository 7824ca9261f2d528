"""The models in a directory: its GGUF files, and its folders, which hold the files of one model or of several."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from localinfer.errors import ModelNotFoundError, UsageError
from localinfer.escaping import printable
from localinfer.gguf.split_names import NAME
from localinfer.hub.file_selection import is_model

MAX_DEPTH = 2  # folders within folders, such as OWNER/REPOSITORY


class FoundModel(NamedTuple):
    """A model file, the first one if the model is split, and its name: that of the file, or of a folder of its own."""

    name: str
    path: Path


def find_models(directory: Path) -> list[FoundModel]:
    """Return the models of a directory, by name. Projectors of images and other auxiliary files are left out.

    Raises ModelNotFoundError if the directory does not exist or cannot be read, UsageError if it is a file.
    """
    try:
        found = list(models_in(directory, "", 0))
    except NotADirectoryError:
        raise UsageError(f"{printable(str(directory))}: is not a directory") from None
    except OSError as error:
        raise ModelNotFoundError(f"{printable(str(directory))}: {error.strerror}") from None
    return sorted(found)


def models_in(folder: Path, prefix: str, depth: int) -> Iterator[FoundModel]:
    """Yield the models of a folder and of those within it; names begin with the prefix."""
    entries = sorted(folder.iterdir())
    firsts = [each for each in entries if is_model(each.name) and is_file(each)]
    if prefix and len(firsts) == 1:
        yield FoundModel(printable(prefix.rstrip("/")), firsts[0])
    else:
        names = Counter(map(file_name, firsts))  # one model may be split, and another one not
        yield from (
            FoundModel(printable(prefix + (file_name(each) if names[file_name(each)] == 1 else each.stem)), each)
            for each in firsts
        )
    if depth < MAX_DEPTH:
        for each in entries:
            if not each.name.startswith("."):
                try:
                    yield from models_in(each, f"{prefix}{each.name}/", depth + 1) if each.is_dir() else ()
                except OSError:  # a folder of somebody else
                    continue


def file_name(path: Path) -> str:
    """Return the name of a model file without `.gguf` and the number of its part."""
    part = NAME.fullmatch(path.name)
    return part["prefix"] if part else path.name.removesuffix(".gguf")


def is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False

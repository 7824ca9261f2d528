"""The files of the prefix store.

    prefixes/DIGEST/model.json              the model and the settings that change bits
                    restored.log            a line for each restored prefix: the tokens not evaluated
                    00012-DIGEST.block      the pages of the twelfth block of a prefix
                    restored.log            the tokens of each restored prefix, a line for each
"""

import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

MODEL_FILE, LOG_FILE = "model.json", "restored.log"
ENTRY_NAME = re.compile(r"(\d{5,9})-([0-9a-f]{32})\.(block|state)")
KEPT_FRACTION = 0.9  # of the largest size, after files were removed
ABANDONED_SECONDS = 3600  # after which the file of a writer that was killed is removed


def block_name(number: int, digest: str) -> str:
    """Return the name of the file of a prefix's block; the first one has number 1."""
    return f"{number:05d}-{digest}.block"


def state_name(n_tokens: int, digest: str) -> str:
    """Return the name of the file of the state after `n_tokens` tokens."""
    return f"{n_tokens:07d}-{digest}.state"


def state_of_name(name: str) -> tuple[int, str]:
    """Return the number of tokens and the digest of a state's file, or 0 for another file."""
    found = ENTRY_NAME.fullmatch(name)
    return (int(found[1]), found[2]) if found and found[3] == "state" else (0, "")


def entry_names(directory: Path) -> set[str]:
    """Return the names of all complete files of a model."""
    with os.scandir(directory) as entries:
        return {entry.name for entry in entries if ENTRY_NAME.fullmatch(entry.name)}


class StoredFile(NamedTuple):
    """A file of the store, when it was used last (seconds since 1970), and its size in bytes."""

    path: Path
    used: float
    size: int

    @property
    def number(self) -> int:
        """The number of a block, or of a state's tokens; 0 for a file that is not complete."""
        found = ENTRY_NAME.fullmatch(self.path.name)
        return int(found[1]) if found else 0


@dataclass(frozen=True)
class StoredModel:
    """What is stored for a model with some settings. `restored` has an item for each restored prefix: the number of
    tokens that needed no evaluation."""

    directory: Path
    about: dict[str, object]
    files: Sequence[StoredFile]
    restored: Sequence[int]

    @property
    def size(self) -> int:
        """The size of all files in bytes."""
        return sum(file.size for file in self.files)

    @property
    def used(self) -> float:
        """When a file was used last, in seconds since 1970."""
        return max((file.used for file in self.files), default=0.0)


def touch(paths: Sequence[Path]) -> None:
    """Mark the files of a prefix as used. Its last file is the first one to be removed: none is of use without those
    before it."""
    now = time.time_ns()
    for before, path in enumerate(paths):
        with contextlib.suppress(OSError):
            os.utime(path, ns=(now - 1000 * before, now - 1000 * before))


def stored_files(root: Path) -> Iterator[StoredFile]:
    """Yield the files with prefixes of all models, also those that are being written."""
    for path in root.glob("*/*"):
        with contextlib.suppress(OSError):
            if (path.name.startswith(".") or ENTRY_NAME.fullmatch(path.name)) and path.is_file():
                status = path.stat()
                yield StoredFile(path, status.st_mtime, status.st_size)


def trim(root: Path, max_bytes: int) -> int:
    """Remove the files that were used least recently, if all together are larger than `max_bytes`, and those that a
    killed program left. Return the bytes of the files that remain."""
    files = sorted(stored_files(root), key=lambda file: (file.used, -file.number))
    total = sum(file.size for file in files)
    limit = max_bytes if total <= max_bytes else int(KEPT_FRACTION * max_bytes)
    for file in files:
        is_abandoned = file.path.name.startswith(".") and time.time() - file.used > ABANDONED_SECONDS
        if total > limit or is_abandoned:
            with contextlib.suppress(OSError):
                file.path.unlink()
            total -= file.size
    return total


def stored_models(root: Path) -> list[StoredModel]:
    """Return what is stored, the model that was used last first."""
    files = list(stored_files(root))
    models = [
        StoredModel(
            directory,
            read_about(directory),
            [file for file in files if file.path.parent == directory],
            read_log(directory),
        )
        for directory in (root.iterdir() if root.is_dir() else ())
        if (directory / MODEL_FILE).is_file()
    ]
    return sorted(models, key=lambda model: -model.used)


def read_about(directory: Path) -> dict[str, object]:
    """Return what `model.json` says, or nothing if it is damaged."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        found = json.loads((directory / MODEL_FILE).read_bytes())
        return found if isinstance(found, dict) else {}
    return {}


def read_log(directory: Path) -> list[int]:
    """Return the numbers of tokens that were restored."""
    with contextlib.suppress(OSError, ValueError):
        return [int(line) for line in (directory / LOG_FILE).read_text().split()]
    return []


def remove(model: StoredModel) -> None:
    """Remove everything that is stored for a model."""
    shutil.rmtree(model.directory, ignore_errors=True)

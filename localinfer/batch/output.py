"""The file that answers are appended to, one line each. Whatever ends the job, only whole lines count.

    with opened(path, restart=False) as output:
        for place, line in output.lines(): ...    # what earlier runs have written
        output.append(line)

A process that is killed leaves at most one line without its end, which the next run cuts off. A power cut loses at most
what was appended in the last second. Knows nothing of what the lines say.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from localinfer.errors import LocalInferError
from localinfer.files.safe_file import appearing, shown
from localinfer.files.unfinished import require_alone

APPENDED = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
SYNC_SECONDS = 1.0
READ_BYTES = 1 << 20  # that are read at once


class Place(NamedTuple):
    """Where a line is in the file."""

    start: int  # the offset of its first byte
    size: int  # bytes, with the newline


@dataclass(slots=True)
class Output:
    """The open file."""

    path: Path
    descriptor: int
    size: int = 0  # bytes of all whole lines
    _synced: float = field(default_factory=time.monotonic)

    def lines(self) -> Iterator[tuple[Place, bytes]]:
        """All whole lines and their places, in the order of the file."""
        with self.path.open("rb") as file:
            start = 0
            for line in file:
                if line.endswith(b"\n"):
                    yield Place(start, len(line)), line
                    start += len(line)

    def append(self, line: bytes) -> None:
        """Write one more line. If that fails, the file ends with the line before it, and LocalInferError says why."""
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[os.write(self.descriptor, rest) :]
        except OSError as error:
            self.cut()
            raise LocalInferError(f"{shown(self.path)}: {error.strerror}") from None
        self.size += len(line)
        if time.monotonic() - self._synced >= SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Wait until what was written is on the disk."""
        with suppress(OSError):  # some file systems cannot
            os.fsync(self.descriptor)
        self._synced = time.monotonic()

    def cut(self) -> None:
        """Cut off what stands behind the last whole line."""
        with suppress(OSError):
            os.truncate(self.descriptor, self.size)

    def rewrite(self, places: Sequence[Place]) -> None:
        """Keep only the lines at these places, in this order. Nothing is written if the file is like that already.

        The new file replaces the old one at once, or not at all: then LocalInferError says why.
        """
        ends = [place.start + place.size for place in places]
        if [place.start for place in places] == [0, *ends[:-1]] and ends[-1:] == [self.size]:
            return
        size = sum(place.size for place in places)
        with appearing({self.path: size}, replace=True) as [file], self.path.open("rb") as old:
            at = 0
            for place in places:
                old.seek(place.start)
                file.write_at(at, old.read(place.size))
                at += place.size
        os.close(self.descriptor)
        self.descriptor, self.size = open_alone(self.path), size


@contextmanager
def opened(path: Path, *, restart: bool) -> Iterator[Output]:
    """Open the file for this process alone, and create it if needed; with `restart`, remove what is in it.

    What stands behind the last whole line stays until `cut` is called: the file may turn out to be something else.
    LocalInferError if the file cannot be opened, or another process has it open.
    """
    output = Output(path, open_alone(path))
    try:
        if restart:
            os.truncate(output.descriptor, 0)
        output.size = size_of_whole_lines(output.descriptor)
        yield output
    finally:
        output.sync()
        os.close(output.descriptor)


def open_alone(path: Path) -> int:
    """A descriptor for appending to the file. LocalInferError if another process has it open for that, too."""
    try:
        descriptor = os.open(path, APPENDED, 0o666)
    except OSError as error:
        raise LocalInferError(f"{shown(path)}: {error.strerror}") from None
    try:
        require_alone(path, descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def size_of_whole_lines(descriptor: int) -> int:
    """How many bytes the file has up to its last newline."""
    end = os.fstat(descriptor).st_size
    while end:
        start = max(end - READ_BYTES, 0)
        if (found := os.pread(descriptor, end - start, start).rfind(b"\n")) >= 0:
            return start + found + 1
        end = start
    return 0

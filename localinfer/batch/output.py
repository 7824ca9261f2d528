"""The file that answers go into, a line each. A line is there as a whole or not at all, whatever ends the job.

    with opened(path, restart=False) as output:
        for place, line in output.lines(): ...    # of jobs before
        output.append(line)

A process that is killed leaves at most a line without its end, which the next one cuts off. For power cuts, what was
appended is on the disk after a second. Knows nothing of what lines say.
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
PIECE = 1 << 20  # bytes that are read at once


class Place(NamedTuple):
    """Of a line in the file, with its end."""

    start: int
    size: int


@dataclass(slots=True)
class Output:
    """`size`: bytes of all whole lines."""

    path: Path
    descriptor: int
    size: int = 0
    _synced: float = field(default_factory=time.monotonic)

    def lines(self) -> Iterator[tuple[Place, bytes]]:
        """Those that are whole, from the beginning."""
        with self.path.open("rb") as file:
            start = 0
            for line in file:
                if line.endswith(b"\n"):
                    yield Place(start, len(line)), line
                    start += len(line)

    def append(self, line: bytes) -> None:
        """LocalInferError for what cannot be written; the file then ends with the line before."""
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
        with suppress(OSError):  # some file systems cannot
            os.fsync(self.descriptor)
        self._synced = time.monotonic()

    def cut(self) -> None:
        """Leave whole lines alone in the file."""
        with suppress(OSError):
            os.truncate(self.descriptor, self.size)

    def rewrite(self, places: Sequence[Place]) -> None:
        """Have these lines alone in the file, in this order; a file that was as it shall be stays.

        It changes at once, or not at all: then LocalInferError says why.
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
        self.descriptor, self.size = own(self.path), size


@contextmanager
def opened(path: Path, *, restart: bool) -> Iterator[Output]:
    """The file, for this process alone; with `restart`, without what was in it.

    What stands behind the last whole line stays until `cut`: it may be another program's.
    """
    output = Output(path, own(path))
    try:
        if restart:
            os.truncate(output.descriptor, 0)
        output.size = whole(output.descriptor)
        yield output
    finally:
        output.sync()
        os.close(output.descriptor)


def own(path: Path) -> int:
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


def whole(descriptor: int) -> int:
    """Bytes up to the end of the last line that has one."""
    end = os.fstat(descriptor).st_size
    while end:
        start = max(end - PIECE, 0)
        if (found := os.pread(descriptor, end - start, start).rfind(b"\n")) >= 0:
            return start + found + 1
        end = start
    return 0

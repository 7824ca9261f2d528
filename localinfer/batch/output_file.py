"""The output file of a batch job, to which each response is appended as one line.

    with open_output(path, restart=False) as output:
        for span, line in output.lines(): ...    # lines of earlier runs
        output.append(line)

A killed process leaves at most one incomplete line, which the next run truncates. A power failure loses at most the
lines of the last second; zeros may take the place of some of their bytes, because a file system may record the size of
a file before its content. This module does not interpret the lines.
"""

import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from localinfer.errors import LocalInferError
from localinfer.gguf import file_descriptors
from localinfer.gguf.atomic_file import AtomicFile, atomic_files, display_path, sync_directory
from localinfer.gguf.resumable_file import lock_exclusively

OPEN_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
SYNC_SECONDS = 1.0
READ_CHUNK_BYTES = 1 << 20
CLOSED = -1  # the descriptor of a file that is not open


class LineSpan(NamedTuple):
    """The location of a line in the file."""

    start: int  # byte offset
    size: int  # bytes, including the newline


@dataclass(slots=True)
class OutputFile:
    """An output file that is open for appending."""

    path: Path
    descriptor: int
    size: int = 0  # bytes of all complete lines
    _synced: float = -math.inf  # the first line is synced at once: it shows whose file this is

    def lines(self) -> Iterator[tuple[LineSpan, bytes]]:
        """Yield all complete lines and their locations, in the order of the file."""
        with self.path.open("rb") as file:
            start = 0
            for line in file:
                if line.endswith(b"\n"):
                    yield LineSpan(start, len(line)), line
                    start += len(line)

    def incomplete_line(self, limit: int) -> bytes:
        """Return the first `limit` bytes of what follows the last complete line."""
        return file_descriptors.read_at(self.descriptor, limit, self.size)

    def append(self, line: bytes) -> None:
        """Append a line. Raises LocalInferError if that fails; the file then still ends with a complete line."""
        remaining = memoryview(line)
        try:
            while remaining:
                remaining = remaining[os.write(self.descriptor, remaining) :]
        except OSError as error:
            self.truncate()
            raise LocalInferError(f"{display_path(self.path)}: {error.strerror}") from None
        self.size += len(line)
        if time.monotonic() - self._synced >= SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Flush the written lines to the disk."""
        with suppress(OSError):  # some file systems do not support it
            os.fsync(self.descriptor)
        self._synced = time.monotonic()

    def truncate(self) -> None:
        """Truncate the file after the last complete line."""
        with suppress(OSError):
            os.ftruncate(self.descriptor, self.size)

    def rewrite(self, spans: Sequence[LineSpan]) -> None:
        """Keep only the lines at these locations, in this order. Nothing is written if that changes nothing.

        The new file replaces the old one atomically. Raises LocalInferError if that fails; the old file then remains.
        """
        ends = [span.start + span.size for span in spans]
        if [span.start for span in spans] == [0, *ends[:-1]] and ends[-1:] == [self.size]:
            return
        size = sum(span.size for span in spans)
        try:
            with atomic_files({self.path: size}, replace=True) as [file]:
                self._copy(spans, file)
                if file_descriptors.HOLDS_OPEN_FILES:
                    self.close()
        except BaseException:
            if self.descriptor == CLOSED:
                self._reopen()
            raise
        self._reopen()

    def close(self) -> None:
        """Close the file, if it is open."""
        if self.descriptor != CLOSED:
            os.close(self.descriptor)
            self.descriptor = CLOSED

    def _reopen(self) -> None:
        """Open and lock the file that is now at the path. Raises LocalInferError."""
        self.close()
        self.descriptor = open_exclusive(self.path)
        self.size = size_of_whole_lines(self.descriptor)

    def _copy(self, spans: Sequence[LineSpan], file: AtomicFile) -> None:
        """Copy the lines at these locations to another file."""
        offset = 0
        with self.path.open("rb") as source:
            for span in spans:
                source.seek(span.start)
                file.write_at(offset, source.read(span.size))
                offset += span.size


@contextmanager
def open_output(path: Path, *, restart: bool) -> Iterator[OutputFile]:
    """Open the file exclusively, and create it if needed; with `restart`, remove its content.

    An incomplete last line stays until `truncate` is called, because the file may turn out to be something else.
    Raises LocalInferError if the file cannot be opened or another process has it open.
    """
    output = OutputFile(path, open_exclusive(path))
    try:
        if restart:
            os.ftruncate(output.descriptor, 0)
        output.size = size_of_whole_lines(output.descriptor)
        yield output
    finally:
        output.sync()
        output.close()


def open_exclusive(path: Path) -> int:
    """Return a descriptor for appending. Raises LocalInferError if another process has the file open for appending."""
    try:
        descriptor = os.open(path, OPEN_FLAGS, 0o666)
    except OSError as error:
        raise LocalInferError(f"{display_path(path)}: {error.strerror}") from None
    try:
        lock_exclusively(path, descriptor)
        with suppress(OSError):  # as in `sync`
            sync_directory(path.parent)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def size_of_whole_lines(descriptor: int) -> int:
    """Return the number of bytes up to and including the last newline."""
    end = os.fstat(descriptor).st_size
    while end:
        start = max(end - READ_CHUNK_BYTES, 0)
        if (newline := file_descriptors.read_at(descriptor, end - start, start).rfind(b"\n")) >= 0:
            return start + newline + 1
        end = start
    return 0

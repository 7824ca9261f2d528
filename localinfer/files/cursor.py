"""Reading a header's numbers and strings from a mapped file, each proven to be there before it is read.

Counts and lengths are Python's integers, which do not wrap. Strings are a u64 length and their bytes;
everything is little-endian. What the values mean is the caller's business.
"""

import itertools
import struct
from collections.abc import Iterator
from functools import cached_property
from typing import NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from localinfer.files.mapped import MappedFile
from localinfer.text import printable

Number = TypeVar("Number", bound=np.generic)


class StringArray:
    """An array of strings as it lies in the file: `data[offsets[i] : offsets[i] + lengths[i]]` is string i.

    `data` is the whole file, uint8; `offsets` and `lengths` are int64, (n,). Strings are bytes of any
    encoding, made one by one when asked for: a vocabulary is opened without a Python object a token.
    """

    def __init__(self, data: NDArray[np.uint8], starts: NDArray[np.int64]) -> None:
        """`starts`, (n + 1,): where each string starts, after its length's 8 bytes, and one more would."""
        self.data = data
        self._starts = starts

    @property
    def offsets(self) -> NDArray[np.int64]:
        return self._starts[:-1]

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self._starts) - 8

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: int) -> bytes:
        offset, length = int(self.offsets[index]), int(self.lengths[index])
        return self.data[offset : offset + length].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        first, last = int(self._starts[0]), int(self._starts[-1])
        text = self.data[first : max(first, last - 8)].tobytes()  # one copy, not one numpy slice a string
        starts = (self._starts - first).tolist()
        for start, next_start in itertools.pairwise(starts):
            yield text[start : next_start - 8]


class Cursor:
    """A reading position in the first `limit` bytes of a file, which it cannot leave."""

    def __init__(self, file: MappedFile, limit: int) -> None:
        self.file = file
        self.position = 0
        self.end = min(file.size, limit)

    @property
    def remaining(self) -> int:
        return self.end - self.position

    def fail(self, field: str, problem: str) -> NoReturn:
        raise self.file.error(printable(field, 80), problem)

    def fail_short(self, field: str, need: str) -> NoReturn:
        if self.end < self.file.size:
            self.fail(field, f"{need}: the header may not be larger than {self.end} bytes")
        self.fail(field, f"{need}: the file has {self.remaining} at offset {self.position}")

    def take(self, n_bytes: int, field: str) -> int:
        """Step over the next `n_bytes`; returns where they start."""
        if n_bytes > self.remaining:
            self.fail_short(field, f"{n_bytes} bytes are needed")
        start = self.position
        self.position += n_bytes
        return start

    def integer(self, n_bytes: int, field: str) -> int:
        start = self.take(n_bytes, field)
        return int.from_bytes(self.file.map[start : start + n_bytes], "little")

    def count(self, field: str, smallest: int, limit: int | None = None) -> int:
        """A number of entries of at least `smallest` bytes each, all of which must still fit in."""
        n = self.integer(8, field)
        if n * smallest > self.remaining:
            self.fail_short(field, f"{n} entries need at least {n * smallest} bytes")
        if limit is not None and n > limit:
            self.fail(field, f"{n} entries, the limit is {limit}")
        return n

    def string(self, field: str, limit: int) -> bytes:
        n_bytes = self.integer(8, field)
        if n_bytes > limit:
            self.fail(field, f"a string of {n_bytes} bytes, the limit is {limit}")
        start = self.take(n_bytes, field)
        return self.file.map[start : start + n_bytes]

    def name(self, field: str, limit: int) -> str:
        """A string that is not empty and is UTF-8: the key of a value, the name of a tensor."""
        raw = self.string(f"{field}: name", limit)
        if not raw:
            self.fail(f"{field}: name", "is empty")
        return self.text(raw, f"{field}: name")

    def text(self, raw: bytes, field: str) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            self.fail(field, f"is not valid UTF-8 at byte {error.start}")

    def numbers(self, dtype: np.dtype[Number], n: int, field: str) -> NDArray[Number]:
        """The next `n` numbers, a view on the map."""
        start = self.take(n * dtype.itemsize, field)
        return self.file.bytes[start : self.position].view(dtype)

    def strings(self, field: str) -> StringArray:
        n = self.count(field, smallest=8)
        try:
            starts = np.fromiter(self._starts(n), np.int64, n + 1)
        except (struct.error, OverflowError):  # a length word that is not in the file, or no file could hold
            self.fail_short(field, f"one of {n} strings takes more bytes than are left")
        self.take(int(starts[-1]) - 8 - self.position, field)
        return StringArray(self.file.bytes, starts)

    def _starts(self, n: int) -> Iterator[int]:
        """Where each string starts, and where one more would: the hot loop of opening a file."""
        length_at = struct.Struct("<Q").unpack_from
        view = memoryview(self.file.map)[: self.end]
        start = self.position + 8
        for _ in range(n):
            yield start
            start += length_at(view, start - 8)[0] + 8
        yield start

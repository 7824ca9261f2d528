"""Reading the numbers and strings of a file header, each checked against the bytes that remain.

Counts and lengths are Python integers, which do not overflow. A string is a u64 length followed by its bytes.
Everything is little-endian. Callers interpret the values.
"""

import itertools
import struct
from collections.abc import Iterator
from functools import cached_property
from typing import NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from localinfer.escaping import printable
from localinfer.gguf.mapped_file import MappedFile

Number = TypeVar("Number", bound=np.generic)
SEARCHED_BYTES = 1 << 17  # at a time, for string lengths
MIN_LOOP = 64  # strings


class StringArray:
    """An array of strings as stored in the file: `data[offsets[i] : offsets[i] + lengths[i]]` is string i.

    `data` is the whole file, uint8. `offsets` and `lengths` are int64, (n,). Strings are bytes of any encoding and
    become Python objects only on access, so opening a vocabulary does not create one object per token.
    """

    def __init__(self, data: NDArray[np.uint8], starts: NDArray[np.int64]) -> None:
        """Wrap the strings that start at `starts`, (n + 1,), each after its 8-byte length. The last entry is the end of
        the last string + 8.
        """
        self.data = data
        self._starts = starts

    @property
    def offsets(self) -> NDArray[np.int64]:
        """The offset of every string's first byte in the file."""
        return self._starts[:-1]

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """The length of every string in bytes."""
        return np.diff(self._starts) - 8

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: int) -> bytes:
        offset, length = int(self.offsets[index]), int(self.lengths[index])
        return self.data[offset : offset + length].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        first, last = int(self._starts[0]), int(self._starts[-1])
        text = self.data[first : max(first, last - 8)].tobytes()  # one copy instead of one numpy slice per string
        starts = (self._starts - first).tolist()
        for start, next_start in itertools.pairwise(starts):
            yield text[start : next_start - 8]


class Cursor:
    """A read position within the first `limit` bytes of a file. Reading past the limit raises LocalInferError."""

    def __init__(self, file: MappedFile, limit: int) -> None:
        self.file = file
        self.position = 0
        self.end = min(file.size, limit)

    @property
    def remaining(self) -> int:
        """The number of bytes up to the limit."""
        return self.end - self.position

    def fail(self, field: str, problem: str) -> NoReturn:
        """Raise LocalInferError about a field."""
        raise self.file.error(printable(field, 80), problem)

    def fail_short(self, field: str, need: str) -> NoReturn:
        """Raise LocalInferError because the bytes that a field needs exceed the file or the header's limit."""
        if self.end < self.file.size:
            self.fail(field, f"{need}: the header may not be larger than {self.end} bytes")
        self.fail(field, f"{need}: the file has {self.remaining} at offset {self.position}")

    def take(self, n_bytes: int, field: str) -> int:
        """Advance by `n_bytes` and return the offset where they start."""
        if n_bytes > self.remaining:
            self.fail_short(field, f"{n_bytes} bytes are needed")
        start = self.position
        self.position += n_bytes
        return start

    def integer(self, n_bytes: int, field: str) -> int:
        """Read an unsigned little-endian integer of `n_bytes` bytes."""
        start = self.take(n_bytes, field)
        return int.from_bytes(self.file.map[start : start + n_bytes], "little")

    def count(self, field: str, smallest: int, limit: int | None = None) -> int:
        """Read a u64 count of entries of at least `smallest` bytes each. Raises LocalInferError if they cannot fit."""
        n = self.integer(8, field)
        if n * smallest > self.remaining:
            self.fail_short(field, f"{n} entries need at least {n * smallest} bytes")
        if limit is not None and n > limit:
            self.fail(field, f"{n} entries, the limit is {limit}")
        return n

    def string(self, field: str, limit: int) -> bytes:
        """Read a string: its length as uint64, then its bytes, `limit` at most."""
        n_bytes = self.integer(8, field)
        if n_bytes > limit:
            self.fail(field, f"a string of {n_bytes} bytes, the limit is {limit}")
        start = self.take(n_bytes, field)
        return self.file.map[start : start + n_bytes]

    def name(self, field: str, limit: int) -> str:
        """Read a non-empty UTF-8 string: a metadata key or a tensor name."""
        raw = self.string(f"{field}: name", limit)
        if not raw:
            self.fail(f"{field}: name", "is empty")
        return self.text(raw, f"{field}: name")

    def text(self, raw: bytes, field: str) -> str:
        """Decode UTF-8. Raises LocalInferError if it is invalid."""
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            self.fail(field, f"is not valid UTF-8 at byte {error.start}")

    def numbers(self, dtype: np.dtype[Number], n: int, field: str) -> NDArray[Number]:
        """Return the next `n` numbers as a view on the mapped file."""
        start = self.take(n * dtype.itemsize, field)
        return self.file.bytes[start : self.position].view(dtype)

    def strings(self, field: str) -> StringArray:
        """Read an array of strings."""
        n = self.count(field, smallest=8)
        try:
            starts = string_starts(self.file.bytes[: self.end], self.position, n)
        except (struct.error, OverflowError):  # a length outside the file, or too large for any file
            self.fail_short(field, f"one of {n} strings takes more bytes than are left")
        self.take(int(starts[-1]) - 8 - self.position, field)
        return StringArray(self.file.bytes, starts)


def string_starts(data: NDArray[np.uint8], position: int, n: int) -> NDArray[np.int64]:
    """Return the offset of the bytes of each of n strings, then the offset that one more string would have. The first
    length is at `position`. Raises struct.error or OverflowError if there are fewer than n lengths.

    A Python loop over all tokens would delay each start. Most strings are found without one: see `short_strings`.
    """
    starts = np.empty(n + 1, np.int64)
    view, length_at = data.data, struct.Struct("<Q").unpack_from
    found, loop_until, step = 0, 0, MIN_LOOP
    while found < n:
        if found >= loop_until:
            lengths, next_length = short_strings(data[position : position + SEARCHED_BYTES])
            count = min(len(lengths), n - found)
            if count:
                starts[found : found + count] = position + 8 + lengths[:count]
                position += next_length if count == len(lengths) else int(lengths[count])
                found += count
            if count < MIN_LOOP:  # many strings are empty, or long: do not search again soon
                loop_until, step = found + step, 2 * step
        else:
            starts[found] = position + 8
            position += length_at(view, position)[0] + 8
            found += 1
    starts[n] = position + 8
    return starts


def short_strings(data: NDArray[np.uint8]) -> tuple[NDArray[np.int64], int]:
    """Return the offsets of lengths at the beginning of the data, each of a string of less than 256 bytes, and the
    offset that follows the last string.

    A length below 256 is a byte before seven zeros. All such places are searched at once; they are taken for lengths
    as long as each is where the string before it ends.
    """
    zeros = data[1:] == 0
    pairs = zeros[:-1] & zeros[1:]
    fours = pairs[:-2] & pairs[2:]
    places = np.flatnonzero(fours[:-3] & fours[3:])
    ends = places + 8 + data[places]
    if not len(places) or places[0]:
        return places[:0], 0
    breaks = np.flatnonzero(ends[:-1] != places[1:])
    count = int(breaks[0]) + 1 if len(breaks) else len(places)
    return places[:count], int(ends[count - 1])

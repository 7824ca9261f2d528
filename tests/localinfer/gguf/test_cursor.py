"""Where the strings of an array start, compared with a loop over their lengths."""

import random
import struct
from collections.abc import Iterator

import numpy as np
import pytest

from localinfer.gguf.cursor import MIN_LOOP, SEARCHED_BYTES, string_starts


def naive(stored: bytes, position: int, n: int) -> Iterator[int]:
    for _ in range(n):
        yield position + 8
        position += 8 + int.from_bytes(stored[position : position + 8], "little")
    yield position + 8


def store(texts: list[bytes]) -> bytes:
    return b"".join(struct.pack("<Q", len(text)) + text for text in texts)


def check(texts: list[bytes], position: int = 0) -> None:
    stored = bytes(position) + store(texts) + bytes(9)
    starts = string_starts(np.frombuffer(stored, np.uint8), position, len(texts))
    assert starts.tolist() == list(naive(stored, position, len(texts)))


@pytest.mark.parametrize("lengths", [(1, 20), (0, 3), (0, 0), (1, 300), (250, 700)])
@pytest.mark.parametrize("n", [0, 1, 10 * MIN_LOOP])
def test_lengths(lengths: tuple[int, int], n: int) -> None:
    generator = random.Random(1)
    check([generator.randbytes(generator.randint(*lengths)) for _ in range(n)], position=5)


def test_more_than_is_searched_at_once() -> None:
    check([b"text"] * (SEARCHED_BYTES // 4))


def test_zeros_in_strings() -> None:
    generator = random.Random(1)
    check([bytes(generator.choice((0, 0, 0, 9)) for _ in range(generator.randint(1, 30))) for _ in range(2000)])


@pytest.mark.parametrize("end", [0, 7, 8, 20, -1])
def test_lengths_beyond_the_end(end: int) -> None:
    stored = np.frombuffer(store([b"text"] * 100) + b"\xff" * 8, np.uint8)
    with pytest.raises((struct.error, OverflowError)):
        string_starts(stored[:end], 0, 102)

"""Batches: tokens of one or several sequences that are evaluated together."""

from collections import abc
from itertools import compress
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from localinfer.runtime.sequence import Sequence

Ids = NDArray[np.int32]
Logits = NDArray[np.float32]
Tokens = abc.Sequence[int] | abc.Iterator[int] | Ids
AnyInteger = TypeVar("AnyInteger", np.int32, np.int64)

NO_ROWS = np.zeros(0, np.int32)


class Segment(NamedTuple):
    """New tokens of a sequence within a batch. They follow the tokens that the sequence has cached."""

    sequence: Sequence
    ids: Ids


def output_row_batches(count: int, size: int, skip: int = 0) -> abc.Iterator[Ids]:
    """Yield the row numbers of a batch of `count` tokens but the first `skip`, at most `size` at a time."""
    for start in range(skip, count, size):
        yield np.arange(start, min(start + size, count), dtype=np.int32)


def without_segments(
    segments: abc.Sequence[Segment], is_dropped: abc.Sequence[bool], rows: Ids
) -> tuple[list[Segment], Ids]:
    """Return the segments that are not dropped, and the numbers that `rows`, which belong to these, have among them."""
    kept = [not dropped for dropped in is_dropped]
    is_kept = np.repeat(kept, [len(each.ids) for each in segments])
    return [*compress(segments, kept)], (np.cumsum(is_kept) - 1)[rows].astype(np.int32)


def concatenate(arrays: abc.Sequence[NDArray[AnyInteger]]) -> NDArray[AnyInteger]:
    """Return the concatenation of arrays; a single array is returned as it is."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)

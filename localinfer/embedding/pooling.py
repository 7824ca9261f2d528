"""How the states of a text's tokens become one vector: which of them count, and their mean."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from localinfer.engine.engine import Engine

Floats = NDArray[np.float32]
Ids = NDArray[np.int32]
Rows = NDArray[np.int64]

TOGETHER = 1024  # tokens of texts that are computed in one batch, if none is longer: more do not stay in the caches


def pooled(
    engine: Engine, texts: Sequence[Ids], pooling: str, types: Sequence[Ids] = (),
    progress: Callable[[int], None] = lambda _: None,
) -> Floats:  # fmt: skip
    """The mean of the states of all tokens of each text ("mean"), or the state of the first ("cls") or "last" one:
    float32 (len(texts), n). `progress` is told how many texts are done."""
    sums: list[Floats] = []
    for first, end in together(engine, [len(text) for text in texts]):
        if end == first + 1 and not fit(engine, [len(texts[first])]):
            sums.append(of_long_text(engine, texts[first], pooling))
        else:
            sums.append(of_texts(engine, texts[first:end], pooling, types[first:end]))
        progress(end)
    engine.reset()
    vectors = np.concatenate(sums)
    if pooling == "mean":
        vectors /= np.array([[len(text)] for text in texts], np.float32)
    return vectors


def together(engine: Engine, lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Neighbours that fit into a batch, or one that does not: first and end."""
    cuts = [0]
    for number in range(1, len(lengths)):
        if sum(lengths[cuts[-1] : number + 1]) > TOGETHER or not fit(engine, lengths[cuts[-1] : number + 1]):
            cuts.append(number)
    return pairwise([*cuts, len(lengths)])


def fit(engine: Engine, lengths: Sequence[int]) -> bool:
    return sum(lengths) <= engine.plan.batch and engine.sequence.fits(lengths)


def of_texts(engine: Engine, texts: Sequence[Ids], pooling: str, types: Sequence[Ids]) -> Floats:
    """The sums of states of texts that fit in a batch."""
    engine.pack(texts, types)
    ends = np.cumsum([len(text) for text in texts])
    owners = np.repeat(np.arange(len(texts)), np.diff(ends, prepend=0))
    rows = {"mean": np.arange(ends[-1]), "cls": np.r_[0, ends[:-1]], "last": ends - 1}[pooling]
    return sums_of(engine, rows, owners[rows], len(texts))


def of_long_text(engine: Engine, text: Ids, pooling: str) -> Floats:
    """The sum of states of a text that is read batch after batch, which only those can that look back."""
    engine.reset()
    total, done = np.zeros((1, engine.program.recorder.embedding_length), np.float32), 0
    for batch in engine.batches(text):
        engine.append(batch)
        at = np.arange(done, done + len(batch))
        done += len(batch)
        rows = np.flatnonzero({"mean": at >= 0, "cls": at == 0, "last": at == len(text) - 1}[pooling])
        total += sums_of(engine, rows, np.zeros_like(rows), 1)
    return total


def sums_of(engine: Engine, rows: Rows, owners: Rows, count: int) -> Floats:
    """The sums of the states of these tokens of a batch: float32 (count, n), of each of their `owners`, in order."""
    recorder = engine.program.recorder
    sums = np.zeros((count, recorder.embedding_length), np.float32)
    for first in range(0, len(rows), engine.plan.outputs):
        part = slice(first, first + engine.plan.outputs)
        starts = np.flatnonzero(np.diff(owners[part], prepend=-1))
        sums[owners[part][starts]] += np.add.reduceat(engine.program.states(rows[part].astype(np.int32)), starts)
    return sums

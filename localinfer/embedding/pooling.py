"""Pooling: reduces the hidden states of a text's tokens to one vector."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from localinfer.runtime.batch import Segment
from localinfer.runtime.batch_division import split_batches
from localinfer.runtime.engine import Engine

Floats = NDArray[np.float32]
Ids = NDArray[np.int32]
Rows = NDArray[np.int64]

MAX_BATCH_TOKENS = 1024  # for several texts in one batch; the activations of more tokens exceed the CPU caches


def pool_texts(
    engine: Engine, texts: Sequence[Ids], pooling: str, types: Sequence[Ids] = (),
    progress: Callable[[int], None] = lambda _: None,
) -> Floats:  # fmt: skip
    """Return a vector for each text, float32 (len(texts), embedding_length).

    `pooling` is "mean" of the hidden states of all tokens, or the state of the first ("cls") or the "last" token.
    `types` are the token type ids of each text. `progress` is called with the number of finished texts.
    """
    sums: list[Floats] = []
    for first, end in batch_ranges(engine, [len(text) for text in texts]):
        if end == first + 1 and not fits_in_batch(engine, [len(texts[first])]):
            sums.append(long_text_sum(engine, texts[first], pooling))
        else:
            sums.append(batch_sums(engine, texts[first:end], pooling, types[first:end]))
        progress(end)
    engine.reset()
    vectors = np.concatenate(sums)
    if pooling == "mean":
        vectors /= np.array([[len(text)] for text in texts], np.float32)
    return vectors


def token_states(engine: Engine, text: Ids, positions: Rows | None = None) -> Floats:
    """Return the hidden states of all tokens of a text, or of those at some positions in ascending order: float32
    (len(positions), embedding_length)."""
    wanted, done, states = np.arange(len(text)) if positions is None else positions, 0, []
    is_whole = fits_in_batch(engine, [len(text)])
    if not is_whole:
        engine.reset()
    for batch in [text] if is_whole else split_batches(text, engine.graph.batch):
        if is_whole:
            engine.runner.evaluate_packed(engine.sequence, [batch], ())
        else:
            engine.runner.evaluate_segments([Segment(engine.sequence, batch)])
        of_batch = wanted[(wanted >= done) & (wanted < done + len(batch))] - done
        done += len(batch)
        for first in range(0, len(of_batch), engine.graph.outputs):
            rows = of_batch[first : first + engine.graph.outputs].astype(np.int32)
            states.append(engine.runner.hidden_states(rows).copy())
    return np.concatenate(states)


def batch_ranges(engine: Engine, lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, end) of consecutive texts that fit in one batch, or of one text that does not fit."""
    starts = [0]
    for number in range(1, len(lengths)):
        if sum(lengths[starts[-1] : number + 1]) > MAX_BATCH_TOKENS or not fits_in_batch(
            engine, lengths[starts[-1] : number + 1]
        ):
            starts.append(number)
    return pairwise([*starts, len(lengths)])


def fits_in_batch(engine: Engine, lengths: Sequence[int]) -> bool:
    """Return whether texts of these lengths fit in one batch."""
    return sum(lengths) <= engine.graph.batch and engine.sequence.fits(lengths)


def batch_sums(engine: Engine, texts: Sequence[Ids], pooling: str, types: Sequence[Ids]) -> Floats:
    """Return the sums of the selected states of texts that fit in one batch."""
    engine.runner.evaluate_packed(engine.sequence, texts, types)
    ends = np.cumsum([len(text) for text in texts])
    owners = np.repeat(np.arange(len(texts)), np.diff(ends, prepend=0))
    rows = {"mean": np.arange(ends[-1]), "cls": np.r_[0, ends[:-1]], "last": ends - 1}[pooling]
    return pooled_sums(engine, rows, owners[rows], len(texts))


def long_text_sum(engine: Engine, text: Ids, pooling: str) -> Floats:
    """Return the sum of the selected states of a text that needs several batches; only causal models support that."""
    engine.reset()
    total, done = np.zeros((1, engine.compiled_graph.model_graph.embedding_length), np.float32), 0
    for batch in split_batches(text, engine.graph.batch):
        engine.runner.evaluate_segments([Segment(engine.sequence, batch)])
        positions = np.arange(done, done + len(batch))
        done += len(batch)
        rows = np.flatnonzero(
            {"mean": positions >= 0, "cls": positions == 0, "last": positions == len(text) - 1}[pooling]
        )
        total += pooled_sums(engine, rows, np.zeros_like(rows), 1)
    return total


def pooled_sums(engine: Engine, rows: Rows, owners: Rows, count: int) -> Floats:
    """Return the sums of hidden states by text: float32 (count, embedding_length).

    `rows` are tokens of the last batch, and `owners` is the text of each row, in ascending order.
    """
    sums = np.zeros((count, engine.compiled_graph.model_graph.embedding_length), np.float32)
    for first in range(0, len(rows), engine.graph.outputs):
        output_rows = slice(first, first + engine.graph.outputs)
        starts = np.flatnonzero(np.diff(owners[output_rows], prepend=-1))
        sums[owners[output_rows][starts]] += np.add.reduceat(
            engine.runner.hidden_states(rows[output_rows].astype(np.int32)), starts
        )
    return sums

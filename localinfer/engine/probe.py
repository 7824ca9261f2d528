"""Looks inside a forward pass: at what weights are multiplied with, and at the residual stream between blocks."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from localinfer.engine.engine import Engine, Tokens
from localinfer.engine.inputs import Given
from localinfer.errors import Unsupported
from localinfer.plan.buffers import Buffer
from localinfer.plan.plan import Product
from quant.products.layout import RUN_WORDS

Floats = NDArray[np.float32]


class Probe:
    """Of an engine that nobody else uses meanwhile."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._program, self._sequence = engine, engine.program, engine.sequence

    def inputs(self, tokens: Tokens, *, head: bool = False) -> Iterator[Given]:
        """What the weights of all layers, and of the output layer for `head`, are multiplied with while `tokens` pass.

        Weights that share an input come together, with some of its rows: of a batch, of an expert in a batch, and in
        the output layer of a part of it. They are valid until the next ones. Appends all tokens to the cache.
        """
        for batch in self._engine.batches(self._engine.checked(tokens)):
            self._engine.place(batch)
            yield from self._inputs(0, self._program.head[0], len(batch))
            self._sequence.commit(batch.tolist())
            for rows in self._engine.rows_of(len(batch)) if head else ():
                self._program.pick(rows)
                yield from self._inputs(*self._program.head, len(rows))

    def _inputs(self, first: int, end: int, tokens: int, *, whole: bool = True) -> Iterator[Given]:
        """Run some of the ops, and stop before each stage with products to look at what goes into them.

        Those from the last of these stages on are run only if it shall be done as a `whole`.
        """
        sharing: dict[tuple[int, Buffer], list[Product]] = {}
        for product in self._program.plan.products:
            if first <= product.stage < end:
                sharing.setdefault((product.stage, product.x), []).append(product)
        for (stage, x), products in sharing.items():
            self._engine.run(first, stage, tokens)
            first = stage
            names = dict.fromkeys(product.weight.name for product in products)  # a matrix may be used in slices
            weights = [self._engine.file.tensors[name] for name in names]
            rows, runs = x.floats.view(np.float32).reshape(-1, x.n), products[0].runs
            if runs is None:
                yield Given(weights, rows[:tokens])
                continue
            words = runs.view(np.int64)
            for expert, begin, count in words[1 : 1 + RUN_WORDS * int(words[0])].reshape(-1, RUN_WORDS).tolist():
                yield Given(weights, rows[begin : begin + count], expert)
        if whole:
            self._engine.run(first, end, tokens)

    # --- one block after the other, over a text that begins at position 0 and fits in a batch ---

    def embedded(self, tokens: Tokens) -> Floats:
        """The residual stream before the first block, float32 (len(tokens), n).

        Raises Unsupported where blocks take more than that from what was before them.
        """
        if self._program.recorder.linked:
            what = "its blocks take more from each other than the residual stream: they cannot be run one by one"
            raise self._engine.file.error("general.architecture", what, Unsupported)
        self._sequence.reset()
        ids = self._engine.checked(tokens)
        self._engine.place(ids)
        self._engine.run(0, self._program.recorder.block_starts[0], len(ids))
        return self._program.residual(len(ids)).copy()

    def run_block(self, number: int, x: Floats) -> None:
        """Put into x, the residual stream before a block, what it is behind it."""
        self._begin(x)
        self._engine.run(*self._program.recorder.block_ops(number), len(x))
        x[:] = self._program.residual(len(x))

    def inputs_of_block(self, number: int, x: Floats) -> Iterator[Given]:
        """As `inputs`, of one block, before which the residual stream is x."""
        self._begin(x)
        yield from self._inputs(*self._program.recorder.block_ops(number), len(x), whole=False)

    def inputs_of_head(self, x: Floats) -> Iterator[Given]:
        """As `inputs`, of the output layer, before which the residual stream is x."""
        self._begin(x)
        for rows in self._engine.rows_of(len(x)):
            self._program.pick(rows)
            yield from self._inputs(*self._program.head, len(rows), whole=False)

    def _begin(self, x: Floats) -> None:
        """Have a residual stream where the blocks find it, and nothing in the cache."""
        self._sequence.reset()
        self._engine.place(np.zeros(len(x), np.int32))
        self._program.residual(len(x))[:] = x

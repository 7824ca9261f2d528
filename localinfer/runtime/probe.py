"""Access to intermediate values of a forward pass: inputs of weight matrices, and the residual stream
between blocks."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import UnsupportedError
from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.ops.compute_graph import Product
from localinfer.graph.properties.embedded_adapters import is_adapter_matrix
from localinfer.runtime.attention_inputs import AttentionObserver
from localinfer.runtime.batch import Ids, Segment, Tokens, output_row_batches
from localinfer.runtime.batch_division import split_batches
from localinfer.runtime.cuts import run_in_parts
from localinfer.runtime.engine import Engine
from localinfer.runtime.input_statistics import WeightInputs
from localinfer.runtime.token_checks import checked_tokens
from quant.matmul.layout import RUN_WORDS

Floats = NDArray[np.float32]


class ActivationProbe:
    """A probe of an engine. No other code may use the engine at the same time.

    With an `observer` of the engine, the inputs of values are averages: see `localinfer.runtime.attention_inputs`.
    """

    def __init__(self, engine: Engine, observer: AttentionObserver | None = None) -> None:
        self._engine, self._runner, self._sequence = engine, engine.runner, engine.sequence
        self._compiled_graph = engine.runner.graph_with(engine.sequence.modifiers.hooks)
        self._observer = observer

    def layer_inputs(self, tokens: Tokens, *, include_output_layer: bool = False) -> Iterator[WeightInputs]:
        """Append `tokens` and yield the inputs of all layers' weights, and of the output layer with
        `include_output_layer`.

        Weights that share an input come together, with some of its rows: those of a batch, of one expert in a batch, or
        of some rows of a batch in the output layer. The rows are valid until the next item. With an observer, `tokens`
        must be a whole text.
        """
        ids = checked_tokens(tokens, self._runner, self._sequence)
        if self._observer:
            self._observer.restart()
        for batch in split_batches(ids, self._engine.graph.batch, self._runner.media_table):
            self._set_inputs(batch)
            given = self._inputs(0, self._compiled_graph.model_graph.output_ops[0], len(batch))
            yield from self._with_averages(given, len(ids))
            self._sequence.commit(batch.tolist())
            for rows in self._output_row_batches(len(batch)) if include_output_layer else ():
                self._compiled_graph.select_output_rows(rows)
                yield from self._inputs(*self._compiled_graph.model_graph.output_ops, len(rows))

    def _inputs(self, first: int, end: int, tokens: int, *, run_all: bool = True) -> Iterator[WeightInputs]:
        """Run a range of ops and stop before each stage with matrix multiplications to yield its inputs.

        The ops from the last such stage on only run with `run_all`.
        """
        products_by_input: dict[tuple[int, Buffer], list[Product]] = {}
        of_file = {name: each for name, each in self._engine.file.tensors.items() if not is_adapter_matrix(name)}
        for product in self._compiled_graph.graph.products:
            if first <= product.first_op < end and product.weight.name in of_file:
                products_by_input.setdefault((product.first_op, product.x), []).append(product)
        stages = [stage for stage, _ in products_by_input]
        parts = run_in_parts(lambda start, stop: self._runner.run(start, stop, tokens), stages, first, end)
        for (_, x), products in products_by_input.items():
            next(parts)
            names = dict.fromkeys(product.weight.name for product in products)  # a matrix may be used in several slices
            weights = [of_file[name] for name in names]
            rows, runs = x.floats.view(np.float32).reshape(-1, x.n), products[0].runs
            if runs is None:
                yield WeightInputs(weights, rows[:tokens])
                continue
            words = runs.view(np.int64)
            for expert, begin, count in words[1 : 1 + RUN_WORDS * int(words[0])].reshape(-1, RUN_WORDS).tolist():
                # Matrices of heads may be the rows of one, whose inputs are those of all heads.
                number = expert if len(weights[0].shape) > 2 else None
                yield WeightInputs(weights, rows[begin : begin + count], number)
        if run_all:
            next(parts, None)  # there are no more cuts: the last ops run

    # --- block by block, for a text that begins at position 0 and fits in one batch ---

    def embed(self, tokens: Tokens) -> Floats:
        """Return the residual stream before the first block, float32 (len(tokens), n).

        Raises UnsupportedError if blocks have further inputs than the residual stream.
        """
        if self._compiled_graph.model_graph.has_cross_layer_inputs:
            what = "blocks share more than the residual stream and cannot run one by one"
            raise self._engine.file.error("general.architecture", what, UnsupportedError)
        self._sequence.reset()
        ids = checked_tokens(tokens, self._runner, self._sequence)
        self._set_inputs(ids)
        self._runner.run(0, self._compiled_graph.model_graph.block_starts[0], len(ids))
        return self._compiled_graph.residual_stream(len(ids)).copy()

    def run_block(self, number: int, x: Floats) -> None:
        """Replace `x`, the residual stream before a block, with the one after it."""
        self._load_residual_stream(x)
        self._runner.run(*self._compiled_graph.model_graph.block_ops(number), len(x))
        x[:] = self._compiled_graph.residual_stream(len(x))

    def block_inputs(self, number: int, x: Floats) -> Iterator[WeightInputs]:
        """Yield the inputs of one block's weights, as `layer_inputs`. `x` is the residual stream before the block."""
        self._load_residual_stream(x)
        given = self._inputs(*self._compiled_graph.model_graph.block_ops(number), len(x), run_all=False)
        yield from self._with_averages(given, len(x))

    def _with_averages(self, given: Iterator[WeightInputs], n_tokens: int) -> Iterator[WeightInputs]:
        """Return inputs of a text of `n_tokens` tokens, with averages instead of the inputs of values if there is an
        observer."""
        return self._observer.replace_values(given, n_tokens) if self._observer else given

    def output_layer_inputs(self, x: Floats) -> Iterator[WeightInputs]:
        """Yield the inputs of the output layer, as `layer_inputs`. `x` is the residual stream before it."""
        self._load_residual_stream(x)
        for rows in self._output_row_batches(len(x)):
            self._compiled_graph.select_output_rows(rows)
            yield from self._inputs(*self._compiled_graph.model_graph.output_ops, len(rows), run_all=False)

    def _load_residual_stream(self, x: Floats) -> None:
        """Clear the cache and write `x` into the residual stream's buffer."""
        self._sequence.reset()
        if self._observer:
            self._observer.restart()
        self._set_inputs(np.zeros(len(x), np.int32))
        self._compiled_graph.residual_stream(len(x))[:] = x

    def _set_inputs(self, ids: Ids) -> None:
        """Write the inputs of a batch of the engine's sequence where the kernels read them."""
        self._runner.set_inputs([Segment(self._sequence, ids)])

    def _output_row_batches(self, count: int) -> Iterator[Ids]:
        """Yield the row numbers of a batch of `count` tokens, as many at a time as the output layer evaluates."""
        return output_row_batches(count, self._engine.graph.outputs)

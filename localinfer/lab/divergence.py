"""The KL divergence of a model whose weights change from the model as it was, on chunks of a text.

    meter = DivergenceMeter(engine, chunks)        # evaluates the chunks with the present weights
    ...                                            # the weights of block 7 change
    meter.divergence()                             # equals `localinfer compare` of two files, to the bit

Only what comes after a change is evaluated, from the residual stream before the first changed block.
"""

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from localinfer.errors import NotEnoughMemoryError
from localinfer.evaluation.compare import Scores, score
from localinfer.evaluation.perplexity import Mean, Tokens, require_finite, score_chunk
from localinfer.machine import resources
from localinfer.runtime.batch import Logits
from localinfer.runtime.engine import Engine
from localinfer.runtime.input_statistics import WeightInputs
from localinfer.runtime.probe import ActivationProbe, Floats
from localinfer.tokenizer.chunks import Chunks

Work = Callable[[], None]
Position = tuple[int, list[Floats]]


class DivergenceMeter:
    """Measures the divergence from the weights that the engine has when the meter is made.

    `chunks` are int32 (chunks, n_ctx); the second half of each is scored, as in `localinfer compare`. The engine
    evaluates a chunk as one batch. `states` is the residual stream before block `block`, float32 (chunks, n_ctx - 1,
    n); `advance` moves both to the next block. Raises NotEnoughMemoryError if the logits do not fit in memory.
    """

    def __init__(self, engine: Engine, chunks: Chunks, on_chunk: Work = lambda: None) -> None:
        self.engine, self.chunks = engine, chunks
        self.probe = ActivationProbe(engine)
        self.n_blocks = engine.compiled_graph.model_graph.block_count
        self.by_block = not engine.compiled_graph.model_graph.has_cross_layer_inputs
        self.block = 0
        self._require_memory()
        self._base: list[Logits] = []
        for chunk in chunks:
            self._base.append(np.concatenate([logits.copy() for logits, _ in score_chunk(engine, chunk)]))
            on_chunk()
        self.states = [self.probe.embed(chunk[:-1]) for chunk in chunks] if self.by_block else []

    def advance(self) -> None:
        """Evaluate the present block, with the present weights, and go on to the next one."""
        for x in self.states:
            self.probe.run_block(self.block, x)
        self.block += 1

    def position(self) -> Position:
        """Return the present block and a copy of its states, for `move`."""
        return self.block, [x.copy() for x in self.states]

    def move(self, position: Position) -> None:
        """Go to the block of a `position`."""
        self.block, self.states = position

    def inputs(self, *, output_layer: bool) -> Iterator[WeightInputs]:
        """Yield the inputs of the weights of the present block, or of the output layer, for the original weights.

        There are none for models whose blocks cannot run one by one. Those of the output layer are taken from the first
        chunk, evaluated as a whole.
        """
        if not self.by_block:
            return
        if not output_layer:
            for x in self.states:
                yield from self.probe.block_inputs(self.block, x)
            return
        x = self.states[0].copy()
        for block in range(self.block, self.n_blocks):
            self.probe.run_block(block, x)
        yield from self.probe.output_layer_inputs(x[len(x) // 2 :])

    def divergence(self, *, whole: bool = False, on_chunk: Work = lambda: None) -> Mean:
        """Return the divergence with the present weights, in nats per token, and its standard error.

        Only weights of the present block, of later ones and of the output layer may have changed; with `whole`, any.
        Raises LocalInferError if logits are not finite.
        """
        values = []
        with ThreadPoolExecutor(self.engine.graph.threads_batch) as pool:
            for number in range(len(self.chunks)):
                scores = Scores.concatenate(self._scores(number, pool, whole or not self.by_block))
                require_finite(self.engine, scores.other)
                values.append(scores.divergence)
                on_chunk()
        return Mean.of(np.concatenate(values))

    def _scores(self, number: int, pool: ThreadPoolExecutor, whole: bool) -> Iterator[Scores]:
        chunk, base, at = self.chunks[number], self._base[number], 0
        following = chunk[len(chunk) // 2 + 1 :]
        for logits in self._logits(number, whole):
            rows = slice(at, at + len(logits))
            parts = [np.array_split(each, pool._max_workers) for each in (base[rows], logits, following[rows])]
            yield from pool.map(score, *parts)
            at += len(logits)

    def _logits(self, number: int, whole: bool) -> Iterator[Logits]:
        """Yield the logits of the scored rows of a chunk, (rows, n_vocab), several rows at a time."""
        chunk: Tokens = self.chunks[number]
        if whole:
            yield from (logits for logits, _ in score_chunk(self.engine, chunk))
            return
        x: Floats = self.states[number].copy()
        for block in range(self.block, self.n_blocks):
            self.probe.run_block(block, x)
        yield from self.engine.runner.output_logits(x[len(chunk) // 2 :])

    def _require_memory(self) -> None:
        rows = self.chunks.shape[0] * math.ceil(self.chunks.shape[1] / 2)
        needed, available = 4 * rows * self.engine.n_vocab, resources.available_memory()
        if needed > available:
            what = f"the logits of {len(self.chunks)} chunks need {needed / 2**30:.1f} GiB"
            raise self.engine.file.error(
                "", f"{what}, {available / 2**30:.1f} GiB are available; reduce --chunks", NotEnoughMemoryError
            )

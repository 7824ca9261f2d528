"""Which layers a model misses least: a greedy search by the divergence that their removal causes.

    for removal in remove_layers(engine, chunks, count=4):
        print(removal.layer, removal.divergence)

One layer after another is removed, each time the one without which the predictions stay closest to those of the whole
model. A layer is removed by not running it: it adds nothing to the residual stream. The divergence is that of
`localinfer compare`: KL(model || model without the layers) of the next tokens after the second half of each chunk.
Shortened LLaMA (Kim et al., 2024) chooses layers by measured perplexity in the same way, but all at once.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import UsageError
from localinfer.evaluation.compare import score_row
from localinfer.evaluation.perplexity import Mean
from localinfer.runtime.engine import Engine
from localinfer.runtime.probe import ActivationProbe
from quant.jit.loader import Progress

Floats = NDArray[np.float32]
Chunks = NDArray[np.int32]  # (chunks, tokens)


class Removal(NamedTuple):
    """A removed layer, by its number in the whole model, and the divergence of the model without it and without those
    that were removed before, in nats per token."""

    layer: int
    divergence: Mean


def remove_layers(
    engine: Engine, chunks: Chunks, count: int, progress: Progress = lambda *_: None
) -> Iterator[Removal]:
    """Yield `count` layers, the one that is missed least first. The engine must evaluate a whole chunk in one batch.

    Raises UsageError if no layer would be left, UnsupportedError if the layers of the model share more than the
    residual stream, and LocalInferError if logits are not finite.
    """
    n_layers = engine.compiled_graph.model_graph.block_count
    if not 0 < count < n_layers:
        raise UsageError(f"the model has {n_layers} layers, so 1 to {n_layers - 1} can be removed, not {count}")
    search = _Search(engine, chunks, count, progress)
    remaining = list(range(n_layers))
    for _ in range(count):
        removal = search.least_missed(remaining)
        remaining.remove(removal.layer)
        yield removal


class _Search:
    """The whole model's residual streams after the last layer, and the progress of a search."""

    def __init__(self, engine: Engine, chunks: Chunks, count: int, progress: Progress) -> None:
        self._engine, self._chunks, self._progress = engine, chunks, progress
        self._probe = ActivationProbe(engine)
        n_layers = engine.compiled_graph.model_graph.block_count
        self._steps = len(chunks) * sum(range(n_layers - count + 1, n_layers + 1))  # removals to measure
        self._steps_done = 0
        self._final = [self._streams(chunk, range(n_layers))[-1] for chunk in chunks]

    def least_missed(self, layers: Sequence[int]) -> Removal:
        """Return the one of `layers`, all that remain, without which the model diverges least."""
        divergences = [self._divergences(chunk, final, layers)
                       for chunk, final in zip(self._chunks, self._final, strict=True)]  # fmt: skip
        by_layer = np.concatenate(divergences, axis=1)
        best = int(by_layer.mean(axis=1).argmin())
        return Removal(layers[best], Mean.of(by_layer[best]))

    def _divergences(self, chunk: NDArray[np.int32], final: Floats, layers: Sequence[int]) -> NDArray[np.float64]:
        """Return the divergences in a chunk without one of the layers each: (layers, scored tokens)."""
        rows = []
        for number, stream in enumerate(self._streams(chunk, layers)[:-1]):
            for layer in layers[number + 1 :]:
                self._probe.run_block(layer, stream)
            rows.append(self._divergence(final, stream))
            self._steps_done += 1
            self._progress("removing layers on trial", self._steps_done, self._steps)
        return np.array(rows)

    def _streams(self, chunk: NDArray[np.int32], layers: Sequence[int]) -> list[Floats]:
        """Return the residual streams before each of the layers, and after the last one."""
        streams = [self._probe.embed(chunk)]
        for layer in layers:
            streams.append(streams[-1].copy())
            self._probe.run_block(layer, streams[-1])
        return streams

    def _divergence(self, whole: Floats, other: Floats) -> list[float]:
        """Return the divergence after each token in the second half of a chunk, but the last one, from two residual
        streams after the last layer."""
        runner, values = self._engine.runner, list[float]()
        scored, size = range(len(whole) // 2, len(whole) - 1), self._engine.graph.outputs
        for first in range(scored.start, scored.stop, size):
            part = slice(first, min(first + size, scored.stop))
            [base] = (logits.copy() for logits in runner.output_logits(whole[part]))
            [reduced] = runner.output_logits(other[part])
            values += [score_row(p, q, 0)[2] for p, q in zip(base, reduced, strict=True)]
        if not np.isfinite(values).all():
            raise self._engine.file.error("logits", "are not finite numbers")
        return values

"""The inputs of the matrices that make values, queries and keys, as attention uses them.

    observer = AttentionObserver(engine)                    # from now on, the engine records queries and keys
    ActivationProbe(engine, observer).block_inputs(...)     # yields the inputs of values for each part of the key heads

The values of a key head are V = X W^T, and a head whose weights are A returns A V. So an error E of the matrix changes
the output of attention by (A X) E^T, and costs as much as with the inputs A X. Tokens that no other attends to have no
effect. An attention sink has as large an effect as all tokens that attend to it.

The inputs of the matrices of queries and keys (`attn_q`, `attn_k`) are multiplied by the root of how strongly the
outputs of the heads depend on the query or key of the token, the sum over the heads
(`localinfer.runtime.activations.score_sensitivity`). In a fused matrix they are not.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import NamedTuple

import numpy as np

from localinfer.gguf.reader import Tensor
from localinfer.graph.cache.ring_buffer import VisiblePositions
from localinfer.graph.points import KEYS, QUERIES, VALUES
from localinfer.graph.recording.attention import LayerAttention
from localinfer.runtime.activations.attention_weights import group_weights
from localinfer.runtime.activations.hooks import Floats, HookGroup, RowInfo, SequenceHooks
from localinfer.runtime.activations.score_sensitivity import ScoreSensitivity
from localinfer.runtime.engine import Engine
from localinfer.runtime.input_statistics import WeightInputs
from quant.jit.loader import Progress

MAX_PARTS = 4  # of the values of a layer, each with a covariance of its own
SINGULAR = 1e-7  # added to the diagonal, relative to its mean: rows to which no token attends have nothing else


class ValueRows(NamedTuple):
    """The rows of a matrix that make the values of a layer: `n_rows` from row `first` on, those of each key head
    together. They are divided into at most `max_parts` parts of adjacent key heads. `scores` are the matrices of
    queries and keys with the same inputs, if each makes whole heads and nothing else."""

    layer: LayerAttention
    visible: VisiblePositions
    first: int
    n_rows: int
    max_parts: int
    scores: tuple[str, ...]

    @property
    def heads_per_part(self) -> int:
        """The number of key heads of a part; the last one may have fewer."""
        return -(-self.layer.heads.count_kv // self.max_parts)

    @property
    def parts(self) -> list[range]:
        """The rows of each part."""
        end, step = self.first + self.n_rows, self.heads_per_part * self.layer.heads.value
        return [range(first, min(first + step, end)) for first in range(self.first, end, step)]

    @property
    def points(self) -> set[str]:
        """The names of the points that are recorded: the layer's queries and keys, and values."""
        return {f"{self.layer.name}{kind}" for kind in (QUERIES, KEYS, *([VALUES] if self.scores else []))}

    @property
    def covariance_count(self) -> int:
        """The number of covariances that the inputs of the layer have, as attention uses them."""
        return len(self.parts) + len(self.scores)


class AttentionObserver:
    """Records the queries, keys and values of an engine's batches, for matrices whose products are the values of a
    layer.

    It replaces the sequence of the engine, and its hooks. `values` has the rows of each such matrix, in at most
    `max_parts` parts.
    """

    def __init__(self, engine: Engine, progress: Progress | None = None, *, max_parts: int = MAX_PARTS) -> None:
        self.engine, self.values = engine, value_rows(engine, max_parts)
        names = [name for rows in self.values.values() for name in rows.points]
        self._recorded: dict[str, list[Floats]] = {}
        self._inputs: dict[str, list[Floats]] = {}  # by the name of the matrix
        self._earlier_hooks = engine.sequence.modifiers.hooks
        hooks = SequenceHooks([HookGroup(dict.fromkeys(names, self._record))])
        if names:
            engine.set_hooks(hooks, progress)
        # With a ring buffer, or keys that are stored without their bias, layers have no such points.
        points = engine.runner.graph_with(hooks).model_graph.points.points
        self.values = {name: rows for name, rows in self.values.items() if rows.points <= points.keys()}
        self._scores = {matrix for rows in self.values.values() for matrix in rows.scores}

    def close(self) -> None:
        """Give the engine the hooks back that it had."""
        if self.engine.sequence.modifiers.hooks is not self._earlier_hooks:
            self.engine.set_hooks(self._earlier_hooks)

    def _record(self, values: Floats, info: RowInfo) -> None:
        self._recorded.setdefault(info.name, []).append(values)

    def restart(self) -> None:
        """Forget what is recorded of a text, before another one begins."""
        self._recorded.clear()
        self._inputs.clear()

    def replace_values(self, given: Iterable[WeightInputs], n_tokens: int) -> Iterator[WeightInputs]:
        """Yield inputs, but for values averages, and for queries and keys scaled ones, once the layer has the queries
        and keys of all tokens of a text.

        The text has `n_tokens` tokens, in one batch or in several. The averages of each part of the rows, (n_tokens,
        n), have the mean covariance of the averages that its query heads make.
        """
        for each in given:
            yield from self._complete_averages(n_tokens)
            for weight in each.weights:
                if weight.name in self.values:
                    self._inputs.setdefault(weight.name, []).append(each.x.copy())
            others = [weight for weight in each.weights if not self._is_replaced(weight)]
            if others:
                yield each._replace(weights=others)
        yield from self._complete_averages(n_tokens)

    def _is_replaced(self, weight: Tensor) -> bool:
        """Return whether all rows of a matrix have other inputs; a fused matrix also makes queries and keys."""
        is_whole = weight.name in self.values and self.values[weight.name].n_rows == weight.shape[0]
        return is_whole or weight.name in self._scores

    def _complete_averages(self, n_tokens: int) -> Iterator[WeightInputs]:
        for name in list(self._inputs):
            rows, tensors = self.values[name], self.engine.file.tensors
            queries, keys, values = (f"{rows.layer.name}{kind}" for kind in (QUERIES, KEYS, VALUES))
            if sum(map(len, self._recorded.get(keys, ()))) < n_tokens:
                continue
            parts = self._recorded.pop(queries), self._recorded.pop(keys), self._inputs.pop(name)
            q, k, x = map(np.concatenate, parts)
            groups = group_weights(rows.layer, rows.visible, q, k, np.arange(n_tokens))
            if rows.scores:
                sensitivity = ScoreSensitivity(q, k, np.concatenate(self._recorded.pop(values)))
                groups = sensitivity.observe(groups, rows.layer.heads.count_kv)
            for part in rows.parts:
                averages = common_weights(islice(groups, rows.heads_per_part)) @ x
                yield WeightInputs([tensors[name]], averages, rows=part)
            if rows.scores:
                for matrix, scaled in zip(rows.scores, sensitivity.scaled(x), strict=True):
                    yield WeightInputs([tensors[matrix]], scaled)


def value_rows(engine: Engine, max_parts: int = MAX_PARTS) -> dict[str, ValueRows]:
    """Return the rows that make the values of each layer, by the name of their matrix. Layers whose values are not the
    product with a matrix, or with one that other layers have, too, have none."""
    found, layers = dict[str, ValueRows](), engine.compiled_graph.model_graph.attention.layers.values()
    uses = Counter(layer.v_weight.name for layer, _ in layers if layer.v_weight)
    for layer, visible in layers:
        if (weight := layer.v_weight) and uses[weight.name] == 1:
            whole = engine.file.tensors[weight.name]
            first = (weight.offset - whole.offset) // (whole.nbytes // whole.shape[0])
            scores = score_matrices(engine, layer)
            found[weight.name] = ValueRows(layer, visible, first, weight.shape[0], max_parts, scores)
    return found


def score_matrices(engine: Engine, layer: LayerAttention) -> tuple[str, ...]:
    """Return the names of the matrices of queries and keys of a layer, or none if not each makes whole heads, or if
    they and the matrix of values have different inputs."""
    heads, tensors = layer.heads, engine.file.tensors
    q, k, v = (f"{layer.name}attn_{each}.weight" for each in "qkv")
    rows = {q: heads.count * heads.key, k: heads.count_kv * heads.key, v: heads.count_kv * heads.value}
    if any(name not in tensors or tensors[name].shape[0] != n for name, n in rows.items()):
        return ()
    inputs = {(each.first_op, each.x) for each in engine.graph.products if each.weight.name in rows}
    return (q, k) if len(inputs) == 1 else ()


def common_weights(groups: Iterable[Floats]) -> Floats:
    """Return U, (tokens, tokens), for which U^T U is the mean of A^T A over the attention weights A of several heads.
    They come in groups, (heads, tokens, tokens). U is not finite if A is not."""
    n_heads, total = 0, np.zeros(1)
    for a in chain.from_iterable(groups):
        n_heads, total = n_heads + 1, total + a.T @ a
    square = total / n_heads
    if not np.isfinite(square.sum()):
        return square.astype(np.float32)
    np.fill_diagonal(square, square.diagonal() + SINGULAR * square.diagonal().mean())
    return np.linalg.cholesky(square).T.astype(np.float32)

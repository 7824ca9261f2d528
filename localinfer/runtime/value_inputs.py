"""The inputs of the matrices that make values (`attn_v`), as attention averages them.

    observer = AttentionObserver(engine)                    # from now on, the engine records queries and keys
    ActivationProbe(engine, observer).block_inputs(...)     # yields the inputs of values for each part of the key heads

The values of a key head are V = X W^T, and a head whose weights are A returns A V. So an error E of the matrix changes
the output of attention by (A X) E^T, and costs as much as with the inputs A X. Tokens that no other attends to have no
effect. An attention sink has as large an effect as all tokens that attend to it.
"""

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localinfer.gguf.reader import Tensor
from localinfer.graph.cache.ring_buffer import VisiblePositions
from localinfer.graph.points import KEYS, QUERIES
from localinfer.graph.recording.attention import LayerAttention
from localinfer.runtime.activations.attention_weights import group_weights
from localinfer.runtime.activations.hooks import Floats, HookGroup, RowInfo, SequenceHooks
from localinfer.runtime.engine import Engine
from quant.jit.loader import Progress

MAX_PARTS = 4  # of the rows of a matrix, each with a covariance of its own
SINGULAR = 1e-7  # added to the diagonal, relative to its mean: rows to which no token attends have nothing else


class ValueRows(NamedTuple):
    """The rows of a matrix that make the values of a layer: `n_rows` from row `first` on, those of each key head
    together. Adjacent key heads are one part if there are more than MAX_PARTS."""

    layer: LayerAttention
    visible: VisiblePositions
    first: int
    n_rows: int

    @property
    def heads_per_part(self) -> int:
        """The number of key heads of a part; the last one may have fewer."""
        return -(-self.layer.heads.count_kv // MAX_PARTS)

    @property
    def parts(self) -> list[range]:
        """The rows of each part."""
        end, step = self.first + self.n_rows, self.heads_per_part * self.layer.heads.value
        return [range(first, min(first + step, end)) for first in range(self.first, end, step)]


class AttentionObserver:
    """Records the queries and keys of an engine's batches, for matrices whose products are the values of a layer.

    It replaces the sequence of the engine, and its hooks. `values` has the rows of each such matrix.
    """

    def __init__(self, engine: Engine, progress: Progress | None = None) -> None:
        self.engine, self.values = engine, value_rows(engine)
        names = [f"{rows.layer.name}{kind}" for rows in self.values.values() for kind in (QUERIES, KEYS)]
        self._recorded: dict[str, tuple[Floats, NDArray[np.int64]]] = {}
        if names:
            engine.set_hooks(SequenceHooks([HookGroup(dict.fromkeys(names, self._record))]), progress)

    def _record(self, values: Floats, info: RowInfo) -> None:
        self._recorded[info.name] = values, info.positions

    def has_all_rows(self, weight: Tensor) -> bool:
        """Return whether all rows of a matrix make values; a fused matrix also makes queries and keys."""
        return weight.name in self.values and self.values[weight.name].n_rows == weight.shape[0]

    def pop_averages(self, name: str, x: Floats) -> Iterator[tuple[range, Floats]]:
        """Yield the rows of each part of a matrix, and averages of the inputs x of the last batch, (tokens, n), with
        the mean covariance of the averages that its query heads make. The queries and keys are forgotten.
        """
        rows = self.values[name]
        (q, positions), (k, _) = (self._recorded.pop(f"{rows.layer.name}{kind}") for kind in (QUERIES, KEYS))
        groups = group_weights(rows.layer, rows.visible, q, k, positions)
        for part in rows.parts:
            weights = np.concatenate(list(islice(groups, rows.heads_per_part)))
            yield part, common_weights(weights) @ x


def value_rows(engine: Engine) -> dict[str, ValueRows]:
    """Return the rows that make the values of each layer, by the name of their matrix. Layers whose values are not the
    product with a matrix have none."""
    found = dict[str, ValueRows]()
    for layer, visible in engine.compiled_graph.model_graph.attention.layers.values():
        if weight := layer.v_weight:
            whole = engine.file.tensors[weight.name]
            first = (weight.offset - whole.offset) // (whole.nbytes // whole.shape[0])
            found[weight.name] = ValueRows(layer, visible, first, weight.shape[0])
    return found


def common_weights(weights: Floats) -> Floats:
    """Return U, (tokens, tokens), for which U^T U is the mean of A^T A over the attention weights A of several heads,
    (heads, tokens, tokens)."""
    square = sum(a.T @ a for a in weights).astype(np.float64) / len(weights)
    np.fill_diagonal(square, square.diagonal() + SINGULAR * square.diagonal().mean())
    return np.linalg.cholesky(square).T.astype(np.float32)

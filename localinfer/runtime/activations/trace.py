"""A trace: the activations of a sequence's tokens, as `Model.capture` records them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import UnsupportedError
from localinfer.graph.points import ATTENTION_WEIGHTS, KEYS, QUERIES, is_of_encoder, kind
from localinfer.runtime.activations.attention_weights import attention_weights
from localinfer.runtime.activations.hooks import Floats, HookGroup, RowInfo

if TYPE_CHECKING:  # a trace is imported when hooks are used
    from localinfer.graph.cache.ring_buffer import VisiblePositions
    from localinfer.graph.recording.attention import LayerAttention

Positions = NDArray[np.int64]
Numbers = TypeVar("Numbers", NDArray[np.float32], NDArray[np.int32])


class Trace(Mapping[str, Floats]):
    """Activations by the name of their point, float32 (tokens, n), with a row for each token of the last run.

    `tokens` are the ids of these tokens; the last token of a text is not evaluated, so it has no row. Points of the
    output layer have rows for the tokens whose logits were computed: `positions` says which. Attention weights are
    (heads, tokens, tokens). Points of encoders have the rows of the last images or sounds that were encoded, one after
    the other.
    """

    def __init__(self, names: Sequence[str], layers: "Mapping[str, tuple[LayerAttention, VisiblePositions]]") -> None:
        """`layers` is the attention of each layer, by its prefix, and what its tokens attend to."""
        self._names, self._layers = names, layers
        self._rows: dict[str, list[tuple[Positions, Floats]]] = {name: [] for name in self._captured_names()}
        self._batches: list[tuple[Positions, NDArray[np.int32]]] = []
        self._n_kept: int | None = None  # the tokens that the sequence still has; None: all

    # --- reading ---

    @property
    def tokens(self) -> list[int]:
        """The ids of the evaluated tokens. Ids of images and sounds are negative."""
        return [id for _, tokens in self._batches for id in tokens.tolist()]

    def positions(self, name: str = "") -> Positions:
        """Return the position of each row of a point, or of each token."""
        parts = self._rows[name] if name else self._batches
        return np.concatenate([positions for positions, _ in parts] or [np.zeros(0, np.int64)])

    def __getitem__(self, name: str) -> Floats:
        if name not in self._names:
            raise KeyError(name)
        if kind(name) == ATTENTION_WEIGHTS:
            return self._attention_weights(name.removesuffix(ATTENTION_WEIGHTS))
        return self._values(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"Trace({len(self.tokens)} tokens, {len(self._names)} points)"

    def _values(self, name: str) -> Floats:
        parts = [values for _, values in self._rows[name]]
        if len(parts) > 1:  # later calls need not concatenate them again
            self._rows[name] = [(self.positions(name), np.concatenate(parts))]
            return self._rows[name][0][1]
        return parts[0] if parts else np.zeros((0, 0), np.float32)

    def _attention_weights(self, prefix: str) -> Floats:
        layer, visible = self._layers[prefix]
        if min(self.tokens, default=0) < 0:
            raise UnsupportedError(f"{prefix}{ATTENTION_WEIGHTS}: the text has images or sounds")
        q, k = self._values(f"{prefix}{QUERIES}"), self._values(f"{layer.kv_source or prefix}{KEYS}")
        return attention_weights(layer, visible, q, k, self.positions())

    # --- recording ---

    def group(self) -> HookGroup:
        """Return the hooks that record the activations."""
        return HookGroup(dict.fromkeys(self._rows, self.add), self._begin_batch, self._rewind, self._begin_media)

    def _captured_names(self) -> Iterator[str]:
        """Yield the points that are recorded: attention weights are computed of others."""
        for name in self._names:
            if kind(name) == ATTENTION_WEIGHTS:
                prefix = name.removesuffix(ATTENTION_WEIGHTS)
                yield from (f"{prefix}{QUERIES}", f"{self._layers[prefix][0].kv_source or prefix}{KEYS}")
            else:
                yield name

    def _begin_batch(self, tokens: NDArray[np.int32], positions: Positions) -> None:
        if self._n_kept is not None:
            self._batches = rows_before(self._n_kept, self._batches)
            for name in self._rows:
                if not is_of_encoder(name):
                    self._rows[name] = rows_before(self._n_kept, self._rows[name])
            self._n_kept = None
        self._batches.append((positions, tokens))

    def _begin_media(self) -> None:
        for name in filter(is_of_encoder, self._rows):
            self._rows[name] = []

    def add(self, values: Floats, info: RowInfo) -> None:
        """Add the activations of some tokens."""
        self._rows[info.name].append((info.positions, values))

    def _rewind(self, n: int) -> None:
        """Forget the rows of all but the first `n` tokens when the next batch begins: until then, they can be read."""
        self._n_kept = n if self._n_kept is None else min(n, self._n_kept)


def rows_before(n: int, parts: Sequence[tuple[Positions, Numbers]]) -> list[tuple[Positions, Numbers]]:
    """Return the rows at positions before `n`."""
    kept = ((positions[positions < n], values[positions < n]) for positions, values in parts)
    return [(positions, values) for positions, values in kept if len(positions)]

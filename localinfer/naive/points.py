"""Points of the naive forward pass: the activations that have a name, which can be read and changed."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from localinfer.graph.builder import Builder
from localinfer.graph.properties.hyperparameters import Hyperparameters
from localinfer.graph.properties.model_properties import ModelProperties
from localinfer.naive.formulas import Floats
from localinfer.naive.weights import Model


class PointBuilder(Builder[Floats]):
    """A builder for `n_tokens` tokens that keeps a copy of the activations at each point, after `model.patches`."""

    def __init__(self, model: Model, n_tokens: int) -> None:
        super().__init__(ModelProperties(model.file, Hyperparameters(model.file)))
        self.model, self.n_tokens = model, n_tokens
        self.token_ids: NDArray[np.int64] = np.zeros(n_tokens, np.int64)
        self.points: dict[str, Floats] = {}

    def point(self, x: Floats, name: str) -> None:
        if name in self.model.patches:
            x[:] = self.model.patches[name](x.copy())
        self.points.setdefault(name, x.copy())

    def asks_for(self, name: str) -> bool:  # noqa: ARG002 (all points are named)
        return True

    def batches(self) -> Iterator[range]:
        """Yield the tokens of each batch. The results do not depend on this division."""
        ends = [*self.model.batch_ends, self.n_tokens]
        yield from map(range, [0, *ends], ends)

    def state_point(self, state: Floats, name: str) -> None:
        """Name a recurrent state after a batch. The point has a row for each batch."""
        if name in self.model.patches:
            state[:] = self.model.patches[name](state.copy())
        self.points[name] = np.stack([*self.points.get(name, ()), state])

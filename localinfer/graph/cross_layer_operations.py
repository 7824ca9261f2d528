"""The interface of the builder's operations on activations that several layers use (`Builder.cross_layer` in
`localinfer.graph.builder`)."""

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from localinfer.graph.properties.hyper_connections import HyperConnections
from localinfer.graph.properties.model_properties import Block

X = TypeVar("X")  # the type of activations


class CrossLayerOperations(ABC, Generic[X]):
    """Activations that several layers use, beside the residual stream."""

    @abstractmethod
    def buffer(self, n: int) -> X:
        """Return activations of n values per token that all layers can use. Call it before the first layer."""

    @abstractmethod
    def copy(self, x: X, to: X, first: int = 0) -> None:
        """Copy x to the values of `to` from `first` on."""

    @abstractmethod
    def attend(self, x: X, earlier: X, count: int, name: str) -> X:
        """Return a mean of x and of the first `count` rows of n values in `earlier`. The weights are a softmax of the
        scores: the products of each, after an RMSNorm, with the weights of `name`."""

    @abstractmethod
    def streams(self, x: X, count: int) -> X:
        """Return `count` residual streams, [token][stream][n_embd], copies of x, which hyper-connections use."""

    @abstractmethod
    def weigh_streams(self, logits: X, name: str, shape: HyperConnections) -> None:
        """Replace logits with the weights of streams, from `name`_scale and `name`_base. As many logits as streams are
        those of a sum only."""

    @abstractmethod
    def collapse(self, x: X, weights: X | None, count: int) -> X:
        """Return the weighted sum of the residual streams x, with the first `count` weights, or without weights, their
        mean."""

    @abstractmethod
    def mix(self, x: X, y: X, weights: X, count: int) -> None:
        """Mix the residual streams x, and add y to each of them, by the weights after the first `count`."""

    @abstractmethod
    def altup(self, x: X, count: int) -> "AltUpStreams[X]":
        """Return `count` residual streams, of which x is the first."""


class AltUpStreams(ABC, Generic[X]):
    """The residual streams of alternating updates (AltUp): all `streams`, and the `predicted` ones of the layer, both
    [token][stream][n_embd]."""

    streams: X
    predicted: X

    @abstractmethod
    def predict(self, blk: Block) -> X:
        """Predict each stream after the layer; return the prediction of the first one, which is the layer's input."""

    @abstractmethod
    def correct(self, blk: Block, y: X) -> X:
        """Correct all streams by the layer's output y; return the first one, scaled."""

    @abstractmethod
    def add_to_inactive(self, branch: X) -> None:
        """Add branch to all streams but the first."""

    @abstractmethod
    def merge(self) -> X:
        """Return the mean of the first stream and the projections of the others, scaled to its RMS."""

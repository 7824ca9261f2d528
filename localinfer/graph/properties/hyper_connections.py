"""Hyper-connections (Zhu et al., 2024): a decoder has several residual streams, which each branch mixes."""

from dataclasses import dataclass

from localinfer.graph.properties.hyperparameters import Hyperparameters

MAX_STREAMS, MAX_ITERATIONS = 16, 1000


@dataclass(frozen=True)
class HyperConnections:
    """The residual streams of a model, `count` in number, and how the weights of streams follow from logits.

    The input of a branch is a weighted sum of the streams; the weights are sigmoid + `eps`. Each stream adds the output
    of the branch times `magnitude` * sigmoid + `output_eps`. If `iterations` is not 0, the streams are mixed by a
    matrix first: a softmax over rows + `eps`, whose columns are normalized to a sum of 1, then its rows and its columns
    in turn (Sinkhorn and Knopp, 1967), the columns `iterations` times in all (Xie et al., 2025: manifold-constrained
    hyper-connections).
    """

    count: int
    eps: float
    iterations: int = 0
    magnitude: float = 2.0
    output_eps: float = 0.0

    @property
    def n_logits(self) -> int:
        """The number of logits of a branch: of the sum, of the output, and of the matrix from streams to streams."""
        return self.count * (2 + (self.count if self.iterations else 0))

    @property
    def n_scales(self) -> int:
        """The number of kinds of logits of a branch, which have a scale each."""
        return 3 if self.iterations else 2


def read_stream_count(hparams: Hyperparameters) -> int:
    """Return the number of residual streams."""
    return hparams.count("hyper_connection.count", maximum=MAX_STREAMS)


def read_hyper_connections(hparams: Hyperparameters) -> HyperConnections:
    """Return the hyper-connections that the metadata describes."""
    return HyperConnections(
        read_stream_count(hparams),
        hparams.positive("hyper_connection.epsilon"),
        hparams.count("hyper_connection.sinkhorn_iterations", 0, minimum=0, maximum=MAX_ITERATIONS),
    )

"""The inputs of RWKV-7's time mixing, and its head size."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from localinfer.graph.hyperparameters import Hyperparameters
from localinfer.kernels.layout import state_strip

X = TypeVar("X")


@dataclass(frozen=True)
class HeadInputs(Generic[X]):
    """Inputs of the time mixing, each [token][head][value]: receptance (query), decay, key, value and in-context
    learning rate."""

    r: X
    w: X
    k: X
    v: X
    a: X


def read_head_size(hparams: Hyperparameters, embedding_length: int) -> int:
    """Return the head size, which must divide n_embd and be a multiple of the kernels' strip size."""
    size = hparams.count("wkv.head_size", maximum=1 << 12)
    if size % state_strip(size) or embedding_length % size:
        raise hparams.unsupported("wkv.head_size", size)
    return size

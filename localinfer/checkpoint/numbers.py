"""The numbers of a model, as everything that is done to a checkpoint asks for them. Knows neither keys nor limits."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localinfer.checkpoint.rope import Rope


@dataclass(frozen=True)
class Own:
    """What is different in a block: some of the numbers, and tensors that it need not have."""

    numbers: Mapping[str, int]
    lacks: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False)
class Numbers:
    """`sliding` says of each block whether it sees a window only; without any, `window` is 0."""

    n_layer: int
    n_ctx: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_vocab: int
    eps: float
    tied: bool  # the output layer is the embedding
    rope: Rope
    rope_swa: Rope  # of the layers with a window
    window: int
    sliding: tuple[bool, ...]
    n_expert: int = 0
    n_ff_expert: int = 0
    n_types: int = 0  # parts of a pair of texts
    n_labels: int = 0  # of a classifier
    first_position: int = 0  # the row of a text's first token among the learned positions
    head_dim_everything: int = 0  # of layers that see everything; 0: as long as all
    n_input: int = 0  # values that each block has of a token for itself
    own: tuple[Own, ...] = ()  # of each block; none: they are all alike
    n_ff_shared: int = 0  # of experts that see every token
    n_ahead: int = 0  # blocks behind these, which predict further tokens
    n_dense: int = 0  # blocks without experts, before those that have some
    experts_step: int = 1  # of so many blocks, the last one has experts
    kinds: tuple[str, ...] = ()  # of each block, and of those ahead, where there are several
    sizes: Mapping[str, int] = field(default_factory=dict)  # that only one architecture has, by names of its own
    factors: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)  # of tensors, or of each of their rows
    packed: int = 0  # ternary matrices are packed, and have a scale to this power (1 or -1); 0: they are not

    def size(self, name: str) -> int:
        """A number by its name."""
        return self.sizes[name] if name in self.sizes else int(getattr(self, name))

    def of_block(self, block: int) -> "Numbers":
        """Those of one block."""
        own: dict[str, Any] = dict(self.own[block].numbers) if self.own else {}
        return replace(self, **own)

    def has_experts(self, block: int) -> bool:
        """Whether a block of a mixture has experts."""
        return block >= self.n_dense and (block + 1) % self.experts_step == 0

    def lacks(self, block: int) -> frozenset[str]:
        """The tensors that a block need not have, of all that the architecture has."""
        return self.own[block].lacks if self.own else frozenset()

    @property
    def n_inputs(self) -> int:
        return self.n_input * self.n_layer

    @property
    def one(self) -> int:
        return 1

    @property
    def n_2embd(self) -> int:
        return 2 * self.n_embd

    @property
    def n_q(self) -> int:
        """Rows of attn_q."""
        return self.n_head * self.head_dim

    @property
    def n_kv(self) -> int:
        """Rows of attn_k, and of attn_v."""
        return self.n_head_kv * self.head_dim

    @property
    def n_qkv(self) -> int:
        return self.n_q + 2 * self.n_kv

    @property
    def n_positions(self) -> int:
        """Learned positions that a checkpoint has."""
        return self.n_ctx + self.first_position

    @property
    def n_gate_and_up(self) -> int:
        return 2 * self.n_ff

    @property
    def n_gate_and_up_expert(self) -> int:
        return 2 * self.n_ff_expert

    @property
    def n_gate_and_up_shared(self) -> int:
        return 2 * self.n_ff_shared

    @property
    def heads_of_group(self) -> int:
        """Heads of queries that share one of keys and values."""
        return self.n_head // self.n_head_kv

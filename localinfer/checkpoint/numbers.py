"""The numbers of a model, as everything that is done to a checkpoint asks for them. Knows neither keys nor limits."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from localinfer.checkpoint.rope import Rope


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
    kinds: tuple[str, ...] = ()  # of each block, where there are several
    own: Mapping[str, int] = field(default_factory=dict)  # sizes that only one architecture has, by names of its own
    packed: int = 0  # ternary matrices are packed, and have a scale to this power (1 or -1); 0: they are not

    def size(self, name: str) -> int:
        """A number by its name."""
        return self.own[name] if name in self.own else int(getattr(self, name))

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
    def n_gate_and_up(self) -> int:
        return 2 * self.n_ff

    @property
    def heads_of_group(self) -> int:
        """Heads of queries that share one of keys and values."""
        return self.n_head // self.n_head_kv

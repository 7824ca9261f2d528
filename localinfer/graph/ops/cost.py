"""The cost of an op, independent of its kernel: bytes read from memory and multiply-accumulates.

It counts what the model requires: the weights once per batch, the keys and values of the attended positions, and one
multiply-accumulate per weight and token. Kernel overhead (packing, masked positions, a second pass for precision) shows
up as lower utilisation in `localinfer.evaluation.roofline`. Activations are not counted because they stay in the
caches.
"""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes read, and multiply-accumulates of small integers (`dots`), floats (`fmas`) and pairs of bfloat16
    (`bf16_pairs`)."""

    nbytes: int = 0
    dots: int = 0
    fmas: int = 0
    bf16_pairs: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        sums = (
            self.nbytes + other.nbytes,
            self.dots + other.dots,
            self.fmas + other.fmas,
            self.bf16_pairs + other.bf16_pairs,
        )
        return Cost(*sums)

    @property
    def macs(self) -> int:
        """All multiply-accumulates."""
        return self.dots + self.fmas + self.bf16_pairs


NO_COST = Cost()


class CostModel(NamedTuple):
    """The cost of an op per batch, per token, and per cached position that a token attends to."""

    batch: Cost = NO_COST
    token: Cost = NO_COST
    position_bytes: int = 0  # of a key and a value of one position
    position_fmas: int = 0
    window: int = 0  # the maximum number of positions that a token attends to
    max_bytes: int = 0  # read by all tokens together if they share data; 0: each token reads its own

    def cost(self, tokens: int, n_past: int) -> Cost:
        """Return the cost for `tokens` tokens after `n_past` others. No tokens cost nothing."""
        if not tokens:
            return NO_COST
        growing = min(max(self.window - n_past, 0), tokens)  # tokens that attend to all positions before them
        attended = growing * (2 * n_past + growing + 1) // 2 + (tokens - growing) * self.window
        positions = min(n_past + tokens, self.window + tokens - 1)
        token_bytes = tokens * self.token.nbytes
        return Cost(
            self.batch.nbytes + min(token_bytes, self.max_bytes or token_bytes) + positions * self.position_bytes,
            self.batch.dots + tokens * self.token.dots,
            self.batch.fmas + tokens * self.token.fmas + attended * self.position_fmas,
            self.batch.bf16_pairs + tokens * self.token.bf16_pairs,
        )

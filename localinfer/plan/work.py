"""How much an op has to do, whatever kernel does it: bytes that must come from memory, multiply-accumulates.

Counted is what the model asks for: its weights once a batch, the keys and values of the tokens that are looked at, a
multiply-accumulate for each weight and token. What a kernel spends beyond that (packing, masked cells, a second pass
for more precision) shows as a smaller share of what the machine can do (`localinfer.judging.roofline`). Activations are
not counted: they stay in the caches. Knows no kernels, and nothing of time.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Amount:
    """Bytes, and multiply-accumulates of small integers, of floats, and of pairs of bfloat16."""

    nbytes: int = 0
    dots: int = 0
    fmas: int = 0
    pairs: int = 0

    def __add__(self, other: "Amount") -> "Amount":
        sums = (self.nbytes + other.nbytes, self.dots + other.dots, self.fmas + other.fmas, self.pairs + other.pairs)
        return Amount(*sums)

    @property
    def macs(self) -> int:
        """All multiply-accumulates."""
        return self.dots + self.fmas + self.pairs


NOTHING_TO_DO = Amount()


@dataclass(frozen=True, slots=True)
class Work:
    """What an op does for a batch, for each of its tokens, and for each cell of the cache that a token looks at."""

    batch: Amount = NOTHING_TO_DO
    token: Amount = NOTHING_TO_DO
    cell_bytes: int = 0  # of a key and a value
    cell_fmas: int = 0
    window: int = 0  # the most cells that a token looks at
    most_bytes: int = 0  # of what tokens read together, where several may read the same; 0: each reads its own

    def amount(self, tokens: int, past: int) -> Amount:
        """For that many tokens behind `past` others; 0 tokens take nothing."""
        if not tokens:
            return NOTHING_TO_DO
        growing = min(max(self.window - past, 0), tokens)  # so many tokens look at everything before them
        looks = growing * (2 * past + growing + 1) // 2 + (tokens - growing) * self.window
        cells = min(past + tokens, self.window + tokens - 1)
        of_tokens = tokens * self.token.nbytes
        return Amount(
            self.batch.nbytes + min(of_tokens, self.most_bytes or of_tokens) + cells * self.cell_bytes,
            self.batch.dots + tokens * self.token.dots,
            self.batch.fmas + tokens * self.token.fmas + looks * self.cell_fmas,
            self.batch.pairs + tokens * self.token.pairs,
        )

"""The schedule: how many tokens each step unmasks, by timesteps as in Dream, or evenly within blocks as in LLaDA."""

from typing import NamedTuple

DEFAULT_EPS, DEFAULT_BLOCK_LENGTH = 0.001, 32


class Block(NamedTuple):
    """Positions of the answer, from `first` to `end` - 1, that are unmasked before those of the next block."""

    first: int
    end: int
    steps: int


def split_blocks(length: int, block_length: int, steps: int) -> list[Block]:
    """Divide an answer into blocks, and `steps` evenly between them; each block has at least one step.

    Without a block length, the answer is one block.
    """
    size = block_length or length
    firsts = range(0, length, size)
    base, more = divmod(steps, len(firsts))
    return [
        Block(first, min(first + size, length), max(1, base + (number < more))) for number, first in enumerate(firsts)
    ]


def unmasked_count(step: int, steps: int, masked: int, eps: float) -> int:
    """Return how many of the `masked` tokens step number `step` of `steps` unmasks. The last step unmasks all.

    With `eps`, a timestep t falls evenly from 1 to eps, and a step from t to s unmasks the part 1 - s / t of the masked
    tokens, rounded down (Dream). Without, the tokens are divided evenly between the remaining steps (LLaDA).
    """
    if step == steps - 1:
        return masked
    if not eps:
        return -(-masked // (steps - step))
    t, s = (1 - at / steps * (1 - eps) for at in (step, step + 1))
    return int(masked * (1 - s / t))

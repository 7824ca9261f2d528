"""Random order of items: the one in which llama-perplexity takes them from the same file.

It draws from the Mersenne Twister MT19937 of the seed 1. `--hellaswag` draws each item with the uniform distribution of
the C++ library of GCC, `--winogrande` and `--multiple-choice` with a product of 32-bit floats.
"""

from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np

SEED = 1  # of llama-perplexity
T = TypeVar("T")


def draw_bounded(bits: Iterator[int], count: int) -> int:
    """Return a number below `count`: the high half of a product, without bias (Lemire, 2019, as in libstdc++)."""
    product = next(bits) * count
    while product & 0xFFFFFFFF < (1 << 32) % count:
        product = next(bits) * count
    return product >> 32


def draw_scaled(bits: Iterator[int], count: int) -> int:
    """Return a number below `count`: a random 32-bit float from 0 to 1 times the count."""
    scale = np.float32(1) / (np.float32(1) + np.float32(0xFFFFFFFF))
    return min(int(scale * np.float32(next(bits)) * np.float32(count)), count - 1)


def random_bits(seed: int) -> Iterator[int]:
    """Yield the 32-bit numbers of std::mt19937."""
    generator = np.random.RandomState(seed)
    while True:
        yield int(generator.randint(0, 1 << 32, dtype=np.uint32))


def shuffled_by_draws(items: Sequence[T], seed: int = SEED) -> list[T]:
    """Return the items in the order in which llama-perplexity --hellaswag takes them."""
    bits, rest = random_bits(seed), list(items)
    return [rest.pop(draw_bounded(bits, len(rest))) for _ in items]


def shuffled_by_swaps(items: Sequence[T], seed: int = SEED) -> list[T]:
    """Return the items in the order in which llama-perplexity --winogrande and --multiple-choice take them."""
    bits, rest, chosen = random_bits(seed), list(items), list[T]()
    while rest:
        at = draw_scaled(bits, len(rest))
        chosen.append(rest[at])
        rest[at] = rest[-1]
        rest.pop()
    return chosen

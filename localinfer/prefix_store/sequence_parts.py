"""The parts of a sequence that are stored: pages of the caches that keep all positions, and other caches as a whole.

Keys and values of full attention lie in pages that never change once they are full. A sliding window or a recurrent
state only continues at the position where it was saved.
"""

from collections.abc import Sequence

from localinfer.graph.cache.kv_cache import KVCache
from localinfer.graph.cache.sequence_cache import Bytes, HeldPages, SequenceCache
from localinfer.kernels.layout import PAGE_SIZE
from localinfer.prefix_store.keys import BLOCK_PAGES, BLOCK_TOKENS
from localinfer.runtime.sequence import Sequence as TokenSequence

Arrays = Sequence[Sequence[Bytes]]  # of each cache


def paged_caches(sequence: TokenSequence) -> list[KVCache]:
    """Return the caches that keep all positions."""
    return [cache for cache in sequence.kv_caches if cache.keeps_all_positions]


def other_caches(sequence: TokenSequence) -> list[SequenceCache]:
    """Return the caches with sliding windows and recurrent states."""
    paged = paged_caches(sequence)
    return [cache for cache in sequence.caches if cache not in paged]


def has_windows(sequence: TokenSequence) -> bool:
    """Return whether a cache is a ring buffer for a sliding window."""
    return any(isinstance(cache, KVCache) for cache in other_caches(sequence))


def hold_block(sequence: TokenSequence, number: int) -> Sequence[HeldPages]:
    """Hold the pages of a block, which are copied later; the first one has number 0."""
    first, end = BLOCK_PAGES * number, BLOCK_PAGES * (number + 1)
    return [cache.page_table.hold(first, end) for cache in paged_caches(sequence)]


def reserve_blocks(sequence: TokenSequence, count: int) -> None:
    """Give an empty sequence the pages of `count` blocks. Raises OutOfPagesError."""
    for cache in paged_caches(sequence):
        cache.reserve(0, count * BLOCK_TOKENS)


def load_block(sequence: TokenSequence, count: int, number: int, saved: Arrays) -> None:
    """Load the pages of block `number` of the `count` blocks that were reserved. Several threads may load different
    ones. Raises ValueError if the contents do not fit."""
    load_pages(sequence, BLOCK_PAGES * number, BLOCK_PAGES * (number + 1), saved, count * BLOCK_TOKENS)


def save_state(sequence: TokenSequence) -> Arrays:
    """Return copies of the other caches, and of the pages after the last whole block."""
    first, end = pages_after_blocks(len(sequence))
    return [*(cache.save() for cache in other_caches(sequence)), *save_pages(sequence, first, end)]


def load_state(sequence: TokenSequence, saved: Arrays, n_tokens: int) -> None:
    """Restore the other caches, and append the pages after the last whole block.

    Raises ValueError if the contents do not fit, and OutOfPagesError.
    """
    caches = other_caches(sequence)
    for cache, arrays in zip(caches, saved[: len(caches)], strict=True):
        cache.load(arrays)
    load_pages(sequence, *pages_after_blocks(n_tokens), saved[len(caches) :], n_tokens)


def pages_after_blocks(n_tokens: int) -> tuple[int, int]:
    """Return the first page after the last whole block, and the end of the pages."""
    return n_tokens // BLOCK_TOKENS * BLOCK_PAGES, -(-n_tokens // PAGE_SIZE)


def save_pages(sequence: TokenSequence, first: int, end: int) -> Arrays:
    """Return copies of the pages `first` .. `end` - 1 of the caches that keep all positions; nothing if there are none.
    """
    return [cache.page_table.copies(first, end) for cache in paged_caches(sequence) if end > first]


def load_pages(sequence: TokenSequence, first: int, end: int, saved: Arrays, n_past: int) -> None:
    """Append pages to the first `first` ones; they hold `n_past` positions then.

    Raises ValueError if the contents do not fit, and OutOfPagesError.
    """
    caches = paged_caches(sequence) if end > first else []
    for cache, arrays in zip(caches, saved, strict=True):
        cache.load_pages(first, end, arrays, n_past)

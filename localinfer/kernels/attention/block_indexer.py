"""The indexer of MiniMax sparse attention (MiniMax, 2026), which chooses blocks of adjacent positions for each key
head.

The score of a block is the largest product of a head's query with a visible key of the block. The `top_k` blocks with
the largest scores are chosen; the last `local` blocks up to that of the token itself count as the largest. Blocks have
`size` positions, at least 16, and begin at multiples of it. Keys have a cache of their own, as those of
`localinfer.kernels.attention.indexer`.

`score_panels` stores the largest products in each panel of 16 entries, float32 [token][head][page][4][2], and
`choose_blocks` the bits of the entries in the chosen blocks, int64 [token][head][page]; `words` is the number of pages
that a token has memory for. The entries of a panel belong to one block, or to two adjacent blocks, because their
positions are contiguous. Exceptions are entries that the token does not see: empty ones, and those of another lap of a
ring buffer.
"""

from typing import Any, NamedTuple

from numba import float32, int32, int64

from localinfer.kernels.attention.indexer import (
    MINUS_INFINITY,
    TOGETHER,
    Body,
    Panel,
    dot_products,
    four_products,
    make_score_tokens,
    ordered_bits,
    threshold_of_largest,
)
from localinfer.kernels.attention.online_softmax import OLDEST_POSITION, visible
from localinfer.kernels.layout import PAGE_SIZE, PANEL_KEYS, RADIX_BYTES
from localinfer.kernels.segments import SEGMENT_BYTES, segments_end
from quant.jit.threads import chunk_range
from quant.jit.vectors import f32x16, inline, load, reduce_max, select, splat, store

PANELS = PAGE_SIZE // PANEL_KEYS  # of a page
PANEL_BYTES = 8  # of the scores of a panel
INFINITY = float32(float("inf"))
WHOLE_PANEL = (1 << PANEL_KEYS) - 1  # its bits


class BlocksOfPanel(NamedTuple):
    """The blocks of the entries of a panel: that of the first `size` entries, and the next one of the others."""

    first: int
    size: int


@inline
def blocks_of_panel(positions: int, size: int) -> BlocksOfPanel:
    """Return the blocks of the panel with these positions."""
    position = int64(load(int32, positions))
    block = position // size
    return BlocksOfPanel(block, min((block + 1) * size - position, PANEL_KEYS))


@inline
def store_largest(out: int, products: Any, near: Any, far: Any) -> None:
    """Store the largest product of the visible entries of the first block, and that of the next one, or -inf."""
    store(out, reduce_max(select(near, products, splat(f32x16, MINUS_INFINITY))))
    store(out + 4, reduce_max(select(far, products, splat(f32x16, MINUS_INFINITY))))


def score_panels() -> Body:
    """Make the kernel that stores the largest products of each head's query with the visible keys of each panel: those
    of the block of the first entry and those of the next block, -inf if the token sees none of them."""

    @inline
    def score_pages(args: Any, token: int, table: int, first: int, end: int) -> None:
        heads, stride, step = args.heads, 4 * args.dim, PANEL_BYTES * PANELS * args.words
        whole, q = heads // TOGETHER * TOGETHER, args.q + stride * heads * token
        newest = load(int32, args.newest + 4 * token)
        for number in range(first, end):
            page = int64(load(int32, table + 4 * number))
            positions = args.entry_positions + 4 * PAGE_SIZE * page
            oldest = int32(OLDEST_POSITION) if number < args.sink_pages else load(int32, args.oldest + 4 * token)
            for panel in range(PANELS):
                keys, at = Panel(args.k_cache + stride * (PAGE_SIZE * page + PANEL_KEYS * panel), args.dim), 64 * panel
                end = (blocks_of_panel(positions + at, args.size).first + 1) * args.size
                near = visible(positions + at, oldest, int32(min(int64(newest), end - 1)))
                far = visible(positions + at, int32(min(max(int64(oldest), end), int64(newest) + 1)), newest)
                out = args.scores + step * heads * token + PANEL_BYTES * (PANELS * number + panel)
                for head in range(0, whole, TOGETHER):
                    p0, p1, p2, p3 = four_products(keys, q + stride * head)
                    store_largest(out + step * head, p0, near, far)
                    store_largest(out + step * (head + 1), p1, near, far)
                    store_largest(out + step * (head + 2), p2, near, far)
                    store_largest(out + step * (head + 3), p3, near, far)
                for head in range(whole, heads):
                    store_largest(out + step * head, dot_products(keys, q + stride * head), near, far)

    return make_score_tokens(score_pages)


@inline
def place_of_block(args: Any, block: int) -> int:
    """Return where the score of a block is: those of attention sinks come first, the others are in a ring."""
    return block if block < args.sink_blocks else args.sink_blocks + block % (args.places - args.sink_blocks)


@inline
def positions_of_panel(args: Any, table: int, panel: int) -> int:
    """Return the address of the positions of a panel, one of all panels of a sequence."""
    page = int64(load(int32, table + 4 * (panel // PANELS)))
    return args.entry_positions + 4 * (PAGE_SIZE * page + PANEL_KEYS * (panel % PANELS))


@inline
def raise_score(args: Any, blocks: int, block: int, score: int) -> None:
    """Raise the score of a block to the one at an address."""
    at = blocks + 4 * place_of_block(args, block)
    store(at, max(load(float32, at), load(float32, score)))


@inline
def score_blocks(args: Any, token: int, scores: int, table: int, panels: int, blocks: int) -> None:
    """Store the score of each block at its place in `blocks`, from the scores of the panels."""
    for place in range(args.places):
        store(blocks + 4 * place, MINUS_INFINITY)
    for panel in range(panels):
        first = blocks_of_panel(positions_of_panel(args, table, panel), args.size).first
        raise_score(args, blocks, first, scores + PANEL_BYTES * panel)
        raise_score(args, blocks, first + 1, scores + PANEL_BYTES * panel + 4)
    own = int64(load(int32, args.query_positions + 4 * token)) // args.size
    for number in range(max(own + 1 - args.local, 0), own + 1):
        block = blocks + 4 * place_of_block(args, number)
        if load(float32, block) > MINUS_INFINITY:
            store(block, INFINITY)


@inline
def mark_largest(args: Any, blocks: int, counters: int) -> None:
    """Replace the scores of blocks with the bits of a panel: all if the block is chosen, else none. `counters` is
    scratch memory."""
    threshold, equal = threshold_of_largest(blocks, args.places, args.top_k, counters)
    for place in range(args.places):
        bits = ordered_bits(blocks + 4 * place)
        is_chosen = bits > threshold
        if bits == threshold and equal > 0:
            is_chosen, equal = True, equal - 1
        store(blocks + 4 * place, int32(WHOLE_PANEL if is_chosen else 0))


@inline
def chosen_of_panel(args: Any, blocks: int, positions: int) -> int:
    """Return the bits of the entries of a panel in chosen blocks, whose marks are in `blocks`."""
    of_panel = blocks_of_panel(positions, args.size)
    of_first = (1 << of_panel.size) - 1
    near = int64(load(int32, blocks + 4 * place_of_block(args, of_panel.first)))
    far = int64(load(int32, blocks + 4 * place_of_block(args, of_panel.first + 1)))
    return (near & of_first) | (far & ~of_first)


def choose_blocks() -> Body:
    """Make the kernel that sets the bits of the entries in the chosen blocks of each token and head. There are
    `places` for the scores of blocks, `sink_blocks` of them for those with attention sinks."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        first, end = chunk_range(load(int64, args.tokens), 1, chunk_index, n_chunks)
        blocks, token_of_segment, row_bytes = scratch + RADIX_BYTES, 0, PANEL_BYTES * PANELS * args.words
        for segment in range(args.segments + 8, segments_end(args.segments), SEGMENT_BYTES):
            count, table, pages = load(int64, segment), load(int64, segment + 8), load(int64, segment + 16)
            for token in range(max(first, token_of_segment), min(end, token_of_segment + count)):
                for row in range(args.heads * token, args.heads * (token + 1)):
                    score_blocks(args, token, args.scores + row_bytes * row, table, PANELS * pages, blocks)
                    mark_largest(args, blocks, scratch)
                    for page in range(pages):
                        word = int64(0)
                        for panel in range(PANELS):
                            positions = positions_of_panel(args, table, PANELS * page + panel)
                            word |= chosen_of_panel(args, blocks, positions) << PANEL_KEYS * panel
                        store(args.chosen + 8 * (args.words * row + page), word)
            token_of_segment += count

    return body

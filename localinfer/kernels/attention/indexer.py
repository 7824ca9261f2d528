"""The lightning indexer of DeepSeek sparse attention (DeepSeek, 2025), which chooses the positions that a token attends
to.

    score = sum over heads of weight * max(query . key, 0)

The `top_k` visible positions with the largest scores are chosen, the earlier ones of those with equal scores. Keys have
a cache of their own, in float32, with the pages of the attention (`localinfer.kernels.attention.cache_types`).

`score_positions` stores the scores of all entries of a sequence, float32 [token][page][64], and `choose_positions` a
bit for each of them, int64 [token][page]; `words` is the number of pages that a token has memory for. In compressed
sparse attention (DeepSeek, 2026), the pages before `compressed_page` have the positions themselves and are all chosen;
only entries of the pages from `compressed_page` on are scored. If `compressed_page` is 0, all entries are scored. The
published code applies a Hadamard transform to queries and keys for its 8-bit products; it does not change exact
products, so it is left out here.

`choose_runs` chooses runs of adjacent positions likewise (GLM-5-Next, Z.ai, 2026; QSA, Alibaba, 2026), and sets the
bits of their positions, and of those after the last complete run, the token's own included. A run is complete from its
last position on. The keys of runs have a cache without entries for positions, in which run n has entry n
(`localinfer.graph.cache.ring_buffer`); position n of a sequence is its entry n in the cache of the attention.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from numba import float32, int32, int64, types

from localinfer.kernels.attention.online_softmax import OLDEST_POSITION, visible
from localinfer.kernels.layout import PAGE_SIZE, PANEL_KEYS, RADIX_DIGITS
from localinfer.kernels.segments import SEGMENT_BYTES, segments_end
from quant.jit.threads import chunk_range
from quant.jit.vectors import f32x16, fma, inline, load, maximum, select, splat, store

Body = Callable[..., None]
PAGES_TOGETHER = 8  # pages of a work item
TOGETHER = 4  # heads whose scores are computed together
MINUS_INFINITY = float32(float("-inf"))
OF_MINUS_INFINITY = 0x007FFFFF  # its ordered bits
BITS = 8  # of a digit of the radix selection


class Panel(NamedTuple):
    """Sixteen adjacent entries of a page."""

    keys: int  # address of the keys, float32 [dim][16]
    dim: int


@inline
def dot_products(panel: Panel, q: int) -> Any:
    """Return the products of a query with the keys of a panel."""
    even, odd = splat(f32x16, float32(0.0)), splat(f32x16, float32(0.0))
    for i in range(0, panel.dim, 2):
        even = fma(splat(f32x16, load(float32, q + 4 * i)), load(f32x16, panel.keys + 64 * i), even)
        odd = fma(splat(f32x16, load(float32, q + 4 * i + 4)), load(f32x16, panel.keys + 64 * i + 64), odd)
    return even + odd


@inline
def add_head(total: Any, product: Any, weight: int) -> Any:
    """Add the weighted score of a head."""
    return fma(maximum(product, splat(f32x16, float32(0.0))), splat(f32x16, load(float32, weight)), total)


@inline
def four_products(panel: Panel, q: int) -> tuple[Any, Any, Any, Any]:
    """Return the products of the queries of four adjacent heads with the keys of a panel."""
    zero, stride = splat(f32x16, float32(0.0)), 4 * panel.dim
    p0, p1, p2, p3 = zero, zero, zero, zero
    for i in range(panel.dim):
        keys, at = load(f32x16, panel.keys + 64 * i), q + 4 * i
        p0 = fma(splat(f32x16, load(float32, at)), keys, p0)
        p1 = fma(splat(f32x16, load(float32, at + stride)), keys, p1)
        p2 = fma(splat(f32x16, load(float32, at + 2 * stride)), keys, p2)
        p3 = fma(splat(f32x16, load(float32, at + 3 * stride)), keys, p3)
    return p0, p1, p2, p3


@inline
def score_panel(panel: Panel, q: int, weights: int, heads: int) -> Any:
    """Return the scores of the keys of a panel for all heads of a query."""
    total, stride = splat(f32x16, float32(0.0)), 4 * panel.dim
    whole = heads // TOGETHER * TOGETHER
    for head in range(0, whole, TOGETHER):
        p0, p1, p2, p3 = four_products(panel, q + stride * head)
        weight = weights + 4 * head
        total = add_head(add_head(total, p0, weight), p1, weight + 4)
        total = add_head(add_head(total, p2, weight + 8), p3, weight + 12)
    for head in range(whole, heads):
        total = add_head(total, dot_products(panel, q + stride * head), weights + 4 * head)
    return total


def make_score_tokens(score_pages: Any) -> Body:
    """Make the kernel that calls score_pages(args, token, table, first, end) for the pages of each token's sequence, in
    ranges: threads divide them."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        items, segments = 0, args.segments
        for segment in range(segments + 8, segments_end(segments), SEGMENT_BYTES):
            items += load(int64, segment) * ((load(int64, segment + 16) + PAGES_TOGETHER - 1) // PAGES_TOGETHER)
        first_item, end_item = items * chunk_index // n_chunks, items * (chunk_index + 1) // n_chunks
        token, done = 0, 0
        for segment in range(segments + 8, segments_end(segments), SEGMENT_BYTES):
            count, table, pages = load(int64, segment), load(int64, segment + 8), load(int64, segment + 16)
            chunks = (pages + PAGES_TOGETHER - 1) // PAGES_TOGETHER
            for item in range(max(first_item - done, 0), min(end_item - done, count * chunks)):
                page = PAGES_TOGETHER * (item % chunks)
                score_pages(args, token + item // chunks, table, page, min(page + PAGES_TOGETHER, pages))
            token, done = token + count, done + count * chunks

    return body


def score_positions() -> Body:
    """Make the kernel that stores the scores of the entries of each token's sequence, -inf for those that it does not
    see. `weights` are [token][head], or the same for all tokens if `weight_stride` is 0."""

    @inline
    def score_pages(args: Any, token: int, table: int, first: int, end: int) -> None:
        q, weights = args.q + 4 * args.heads * args.dim * token, args.weights + args.weight_stride * token
        newest, panel_bytes = load(int32, args.newest + 4 * token), 4 * PANEL_KEYS * args.dim
        for number in range(max(first, args.compressed_page), end):
            page = int64(load(int32, table + 4 * number))
            keys = args.k_cache + 4 * PAGE_SIZE * args.dim * page
            positions = args.entry_positions + 4 * PAGE_SIZE * page
            unlimited = number < args.sink_pages or args.compressed_page > 0
            oldest = int32(OLDEST_POSITION) if unlimited else load(int32, args.oldest + 4 * token)
            out = args.scores + 4 * PAGE_SIZE * (args.words * token + number)
            for panel in range(PAGE_SIZE // PANEL_KEYS):
                total = score_panel(Panel(keys + panel_bytes * panel, args.dim), q, weights, args.heads)
                here = visible(positions + 64 * panel, oldest, newest)
                store(out + 64 * panel, select(here, total, splat(f32x16, MINUS_INFINITY)))

    return make_score_tokens(score_pages)


@inline
def ordered_bits(score: int) -> int:
    """Return a float at an address as an integer from 0 to 2^32 - 1, in the order of the floats."""
    bits = int64(load(types.uint32, score))
    return bits ^ (0xFFFFFFFF if bits >> 31 else 0x80000000)


@inline
def kth_largest(scores: int, n: int, k: int, counters: int) -> tuple[int, int]:
    """Return the ordered bits of the k-th largest of n scores, and how many of the scores that are equal to it belong
    to the k largest: radix selection, digit by digit. `counters` is scratch memory."""
    prefix, wanted = 0, k
    for shift in range(32 - BITS, -1, -BITS):
        for digit in range(RADIX_DIGITS):
            store(counters + 8 * digit, int64(0))
        for i in range(n):
            bits = ordered_bits(scores + 4 * i)
            if bits >> (shift + BITS) == prefix:
                at = counters + 8 * ((bits >> shift) & (RADIX_DIGITS - 1))
                store(at, load(int64, at) + 1)
        digit = RADIX_DIGITS - 1
        while digit > 0 and load(int64, counters + 8 * digit) < wanted:
            wanted -= load(int64, counters + 8 * digit)
            digit -= 1
        prefix = prefix << BITS | digit
    return prefix, wanted


@inline
def threshold_of_largest(scores: int, n: int, k: int, counters: int) -> tuple[int, int]:
    """Return what the k largest of n scores are, or all that are not -inf if these are not more: those whose ordered
    bits are above a threshold, and how many of those that are equal to it."""
    seen, threshold, equal = 0, OF_MINUS_INFINITY, 0
    for i in range(n):
        seen += int64(ordered_bits(scores + 4 * i) > OF_MINUS_INFINITY)
    if seen > k:
        threshold, equal = kth_largest(scores, n, k, counters)
    return threshold, equal


def choose_positions() -> Body:
    """Make the kernel that sets the bits of the `top_k` entries of each token with the largest scores; of all that it
    sees if these are not more."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        first, end = chunk_range(load(int64, args.tokens), 1, chunk_index, n_chunks)
        token_of_segment = 0
        for segment in range(args.segments + 8, segments_end(args.segments), SEGMENT_BYTES):
            count, n = load(int64, segment), PAGE_SIZE * load(int64, segment + 16)
            pages = min(args.compressed_page, n // PAGE_SIZE)  # of entries that are all chosen
            n -= PAGE_SIZE * pages
            for token in range(max(first, token_of_segment), min(end, token_of_segment + count)):
                chosen = args.chosen + 8 * args.words * token
                for page in range(pages):
                    store(chosen + 8 * page, int64(-1))
                scores, chosen = args.scores + 4 * PAGE_SIZE * (args.words * token + pages), chosen + 8 * pages
                threshold, equal = threshold_of_largest(scores, n, args.top_k, scratch)
                for page in range(n // PAGE_SIZE):
                    word = int64(0)
                    for entry in range(PAGE_SIZE):
                        bits = ordered_bits(scores + 4 * (PAGE_SIZE * page + entry))
                        is_chosen = int64(bits > threshold)
                        if bits == threshold and equal > 0:
                            is_chosen, equal = int64(1), equal - 1
                        word |= is_chosen << entry
                    store(chosen + 8 * page, word)
            token_of_segment += count

    return body


@inline
def set_bits(words: int, first: int, end: int) -> None:
    """Set the bits from `first` to `end` - 1 of words of 64 bits."""
    at = first
    while at < end:
        n, word = min(end - at, PAGE_SIZE - at % PAGE_SIZE), words + 8 * (at // PAGE_SIZE)
        bits = int64(-1) if n == PAGE_SIZE else (int64(1) << n) - 1
        store(word, load(int64, word) | bits << (at % PAGE_SIZE))
        at += n


def choose_runs() -> Body:
    """Make the kernel that sets the bits of the positions of the `top_k` runs of each token with the largest scores,
    `size` positions each, and of those after the last complete run. Scores are float32 [token][page][64], with
    `run_words` pages for a token. `chosen` has `words` words for a token, of which those of later positions are not
    written."""

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        first, end = chunk_range(load(int64, args.tokens), 1, chunk_index, n_chunks)
        for token in range(first, end):
            position = int64(load(int32, args.query_positions + 4 * token))
            scores, chosen = args.scores + 4 * PAGE_SIZE * args.run_words * token, args.chosen + 8 * args.words * token
            for word in range(position // PAGE_SIZE + 1):
                store(chosen + 8 * word, int64(0))
            n = (position + 1) // args.size
            threshold, equal = threshold_of_largest(scores, n, args.top_k, scratch)
            for run in range(n):
                bits = ordered_bits(scores + 4 * run)
                is_chosen = bits > threshold
                if bits == threshold and equal > 0:
                    is_chosen, equal = True, equal - 1
                if is_chosen:
                    set_bits(chosen, args.size * run, args.size * run + args.size)
            set_bits(chosen, args.size * n, position + 1)

    return body

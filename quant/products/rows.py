"""What every block-quantized format does with its rows, given the format's own words (`quant.codes.words`).

    get_rows   rows of weights as floats: token embeddings, and everything that wants to look at weights
    matvec     a few tokens: rows straight from the file, bound by memory

The kernel for many tokens is `quant.products.panels`. Threads divide the rows of the output, never a sum, so a result
does not depend on their number.
"""

from functools import cache
from typing import Any

from numba import float32, int32, int64, uint8

from quant.codes.words import Body, Words, words_of
from quant.jit.cpu import target
from quant.jit.threads import share
from quant.jit.vectors import (
    convert,
    dot4,
    extract,
    f32x8,
    f32x16,
    fma,
    i8x64,
    i32x16,
    inline,
    lanes,
    load,
    prefetch,
    prefetch_first,
    splat,
    store,
    total,
)
from quant.products.activations import superblocks_of
from quant.products.base import put_base
from quant.products.layout import ORDERS, flat_bytes
from quant.products.sums import sums_of_eights, sums_of_fours, sums_of_two

# --- rows as floats -----------------------------------------------------------------------------------------------


def values_word(words: Words) -> Any:
    """The word values(codes, scale, least): sixteen weights of a group, rounded just as ggml rounds them."""
    zero = float32(words.zero)

    @inline
    def from_zero(codes: Any, scale: float, least: float) -> Any:
        return splat(f32x16, scale) * (convert(f32x16, codes) - splat(f32x16, zero))

    @inline
    def from_min(codes: Any, scale: float, least: float) -> Any:
        return fma(convert(f32x16, codes), splat(f32x16, scale), splat(f32x16, least))

    return from_zero if words.zero else from_min


def decode_row(words: Words) -> Any:
    """The word decode(row, n, y, factor): n weights as floats, exactly as ggml defines them, times a factor."""
    codes64, scales, mins, group = words.codes64, words.scales, words.mins or words.scales, words.group
    codes32, scale1, least1 = words.codes32, words.scale, words.least or words.scale
    superblock_bytes = words.superblock_bytes
    values = values_word(words)
    first, second, third, fourth = (lanes(range(start, start + 16)) for start in range(0, 64, 16))

    @inline
    def put(codes: Any, scale: float, least: float, y: int, factor: float) -> None:
        store(y, values(codes, scale, least) * splat(f32x16, factor))

    @inline
    def superblock(block: int, y: int, factor: float) -> None:
        scale, least = scales(block), mins(block)
        for j in range(4):
            codes, place = codes64(block, j), y + 256 * j
            a, b, c, d = 64 * j // group, (64 * j + 16) // group, (64 * j + 32) // group, (64 * j + 48) // group
            put(first(codes), extract(scale, a), extract(least, a), place, factor)
            put(second(codes), extract(scale, b), extract(least, b), place + 64, factor)
            put(third(codes), extract(scale, c), extract(least, c), place + 128, factor)
            put(fourth(codes), extract(scale, d), extract(least, d), place + 192, factor)

    if codes32 is None:

        @inline
        def rest(row: int, start: int, n: int, y: int, factor: float) -> None:
            pass

    else:

        @inline
        def rest(row: int, start: int, n: int, y: int, factor: float) -> None:
            for k in range(start // 32, n // 32):
                codes, place, a, b = codes32(row, k), y + 128 * k, 32 * k // group, (32 * k + 16) // group
                put(first(codes), scale1(row, a), least1(row, a), place, factor)
                put(second(codes), scale1(row, b), least1(row, b), place + 64, factor)

    @inline
    def decode(row: int, n: int, y: int, factor: float) -> None:
        for block in range(n // 256):
            superblock(row + block * superblock_bytes, y + 1024 * block, factor)
        rest(row, n // 256 * 256, n, y, factor)

    return decode


def get_rows(room: str) -> Body:
    """The kernel y[token] = factor * w[ids[token]]."""
    decode = decode_row(words_of(room))

    def body(tokens, ids, w, row_bytes, n, y, factor, part, parts, scratch):
        first, end = share(load(int64, tokens), 1, part, parts)
        for token in range(first, end):
            row = int64(load(int32, ids + 4 * token))
            decode(w + row * row_bytes, n, y + 4 * n * token, float32(factor))

    return body


# --- a few tokens -------------------------------------------------------------------------------------------------

# How far ahead of the row loop memory is asked for. A processor's own prefetching ends with a page of 4 KB, and what
# unpacks codes has too much to do per byte to run into the next page early. One line of every superblock is enough for
# it to know the page, and to follow; the rest is asked for from nearer by, or this loop would do all of its work.
NEAR, FAR = 4096, 12288
# A processor that looks far ahead by itself is asked for long rows of formats with much to do: with 576 columns, asking
# made answers slower by a quarter, and with 8 bits a weight it cost more than it brought.
LONG, DENSE = 2048, 8


# Rows for one token, two or three are read in so many places at a time, far from each other, where prefetching follows
# each page by itself: then more of memory is under way. It is asked to come to the second cache only, as the first one
# has few places for lines that it waits for. Two threads of an Intel server read rows of Q4_K and Q6_K at 0.90 to 1.0
# of the speed of a plain read of the same memory, with one place each at 0.82 to 0.88, and with two at 0.91 to 0.99.
STREAMS, AHEAD = 4, 2048


@inline
def nothing(superblock: int) -> None:
    """Ask for nothing."""


def fetch_word(words: Words) -> Any:
    """The word fetch(superblock): have memory ask for the superblock that is read some time from now."""
    lines = -(-words.superblock_bytes // 64)

    @inline
    def fetch(superblock: int) -> None:
        prefetch(superblock + FAR)
        for line in range(lines):
            prefetch_first(superblock + NEAR + 64 * line)

    return fetch


def dot_word(kind: Any, x_kind: Any, bits: int, passes: int) -> Any:
    """The word dot(codes, x, n): the products of codes with as many activations, four columns a lane; n bytes lie
    between the passes."""
    dot4_ = dot4(bits)

    @inline
    def once(codes: Any, x: int, n: int) -> Any:
        return dot4_(splat(kind, int32(0)), codes, load(x_kind, x))

    @inline
    def twice(codes: Any, x: int, n: int) -> Any:
        high = dot4_(splat(kind, int32(0)), codes, load(x_kind, x))
        return dot4_(high << splat(kind, int32(7)), codes, load(x_kind, x + n))

    return {1: once, 2: twice}[passes]


def two_dots_word(bits: int, passes: int) -> Any:
    """The word two_dots(a, b, x, n): the products of 128 codes with as many activations, eight columns a lane."""
    dot4_ = dot4(bits)

    @inline
    def add(start: Any, a: Any, b: Any, x: int) -> Any:
        return dot4_(dot4_(start, a, load(i8x64, x)), b, load(i8x64, x + 64))

    @inline
    def once(a: Any, b: Any, x: int, n: int) -> Any:
        return add(splat(i32x16, int32(0)), a, b, x)

    @inline
    def twice(a: Any, b: Any, x: int, n: int) -> Any:
        high = add(splat(i32x16, int32(0)), a, b, x)
        return add(high << splat(i32x16, int32(7)), a, b, x + n)

    return {1: once, 2: twice}[passes]


# Where the sum of each group of 16 columns is, by the order of columns: in which vector, and which of its four.
SIXTEENS = {
    "columns": [(group // 4, group % 4) for group in range(16)],
    "fours": [(group // 2 % 4, group // 8 * 2 + group % 2) for group in range(16)],
}


# The same for groups of 32, where the two halves of a group have been added up.
QUARTERS = {
    "halves": [(group // 4, group % 4) for group in range(8)],
    "evens": [(group % 2, group // 2) for group in range(8)],
}


def group_sums(words: Words, passes: int) -> Any:
    """The word sums(superblock, x, n): the exact dot product of the codes of every group of columns, in its lane."""
    dot, ordered = dot_word(i32x16, i8x64, words.bits, passes), words.ordered or words.codes64
    two_dots = two_dots_word(words.bits, passes)
    peak = 4 * (2**words.bits - 1) * 128 if passes == 1 else 1 << 31
    sixteen_sums = sums_of_fours(SIXTEENS[words.order if words.group == 16 else "columns"], peak)
    eight_sums, two_sums = sums_of_eights(peak), sums_of_two(QUARTERS.get(words.order, []), 2 * peak)
    from_columns = lanes([0, 4, 1, 5, 2, 6, 3, 7])

    @inline
    def quarter(block: int, j: int, x: int, n: int) -> Any:
        return dot(ordered(block, j), x + 64 * j, n)

    @inline
    def sixteens(block: int, x: int, n: int) -> Any:
        a, b = quarter(block, 0, x, n), quarter(block, 1, x, n)
        return sixteen_sums(a, b, quarter(block, 2, x, n), quarter(block, 3, x, n))

    @inline
    def eights(block: int, x: int, n: int) -> Any:
        a, b = quarter(block, 0, x, n), quarter(block, 1, x, n)
        return eight_sums(a, b, quarter(block, 2, x, n), quarter(block, 3, x, n))

    @inline
    def columns(block: int, x: int, n: int) -> Any:
        return from_columns(eights(block, x, n))

    @inline
    def quarters(block: int, x: int, n: int) -> Any:
        first = two_dots(ordered(block, 0), ordered(block, 1), x, n)
        return two_sums(first, two_dots(ordered(block, 2), ordered(block, 3), x + 128, n))

    by_order = {"columns": columns, "halves": quarters, "evens": quarters, "fours": eights}
    return sixteens if words.group == 16 else by_order[words.order]


def lengthen_word(words: Words) -> Any:
    """The word lengthen(row, row_bytes, place): a row shorter than a superblock, copied to the end of an empty one."""
    superblock_bytes = words.superblock_bytes

    @inline
    def lengthen(row: int, row_bytes: int, place: int) -> Any:
        lacking = superblock_bytes - row_bytes
        for i in range(superblock_bytes):
            store(place + i, load(uint8, row + i - lacking) if i >= lacking else uint8(0))
        return place

    return lengthen


def superblock_word(words: Words) -> Any:
    """The word superblock(at, products, x_scale, x_sums, x_totals, acc): the sums of all places, and what the groups of
    one more superblock add to them."""
    scales, mins, kind, zero = words.scales, words.mins, words.kind, words.zero
    int_kind = kind.of(int32)

    @inline
    def with_zero(at: int, products: Any, x_scale: Any, x_sums: int, x_totals: int, acc: Any) -> Any:
        lacking = load(int_kind, x_totals) * splat(int_kind, int32(zero))
        return fma(convert(kind, products - lacking) * x_scale, scales(at), acc)

    @inline
    def with_mins(at: int, products: Any, x_scale: Any, x_sums: int, x_totals: int, acc: Any) -> Any:
        acc = fma(convert(kind, products) * x_scale, scales(at), acc)
        return fma(mins(at), load(kind, x_sums), acc)

    return with_zero if zero else with_mins


@cache
def token_word(words: Words, passes: int) -> Any:
    """The word add(row, block, x, n, acc): the sums of all places of a token at x, and a superblock of a row."""
    sums, superblock = group_sums(words, passes), superblock_word(words)
    groups, bytes_, order_at = words.groups, len(ORDERS) * passes, passes * ORDERS.index(words.order)
    for_group = lanes([lane * 8 // groups for lane in range(groups)])

    @inline
    def add(at: int, block: int, x: int, columns: int, acc: Any) -> Any:
        numbers, ahead = x + bytes_ * columns, 4 * groups * block
        x_sums = numbers + (columns // 8 if groups == 8 else columns // 4)
        x_totals = numbers + (columns // 2 if groups == 8 else 5 * (columns // 8))
        x_scale, x_at = for_group(load(f32x8, numbers + 32 * block)), x + order_at * columns + 256 * block
        return superblock(at, sums(at, x_at, columns), x_scale, x_sums + ahead, x_totals + ahead, acc)

    return add


@cache
def tokens_words(words: Words, passes: int, count: int) -> tuple[Any, Any, Any]:
    """Words for so many tokens, whose sums are a tuple: start(), add(at, block, x, x_stride, columns, sums), and
    deliver(sums, y, y_stride, add), which adds them up to, or adds them to, a number of each token."""
    kind, add_one = words.kind, token_word(words, passes)

    @inline
    def start() -> Any:
        return (splat(kind, float32(0.0)),)

    @inline
    def add(at: int, block: int, x: int, x_stride: int, columns: int, sums: Any) -> Any:
        return (add_one(at, block, x, columns, sums[0]),)

    @inline
    def deliver(sums: Any, y: int, y_stride: int, add: int) -> None:
        result = total(sums[0])
        store(y, result + load(float32, y) if add else result)

    if count == 1:
        return start, add, deliver
    start_others, add_others, deliver_others = tokens_words(words, passes, count - 1)

    @inline
    def start_all() -> Any:
        return start() + start_others()

    @inline
    def add_all(at: int, block: int, x: int, x_stride: int, columns: int, sums: Any) -> Any:
        others = add_others(at, block, x + x_stride, x_stride, columns, sums[1:])
        return add(at, block, x, x_stride, columns, sums) + others

    @inline
    def deliver_all(sums: Any, y: int, y_stride: int, add: int) -> None:
        deliver(sums, y, y_stride, add)
        deliver_others(sums[1:], y + y_stride, y_stride, add)

    return start_all, add_all, deliver_all


def loop_word(words: Words, passes: int, count: int, fetch: Any, *, both: bool = False) -> Any:
    """The word dots of `dot_row`, which asks for memory as it is told. With `both`, the row behind goes beside: neither
    waits for the end of the other, and activations are read once."""
    start, add, deliver = tokens_words(words, passes, count)
    superblock_bytes = words.superblock_bytes

    @inline
    def dots(row: int, row_bytes: int, x: int, x_stride: int, n: int, y: int, y_stride: int, add_to: int) -> None:
        columns, last = 256 * superblocks_of(n), row + row_bytes - superblock_bytes
        sums, below = start(), start()
        for block in range(columns // 256):
            at = min(row + block * superblock_bytes, last)
            fetch(at)
            sums = add(at, block, x, x_stride, columns, sums)
            if both:
                below = add(at + row_bytes, block, x, x_stride, columns, below)
        deliver(sums, y, y_stride, add_to)
        if both:
            deliver(below, y + 4, y_stride, add_to)

    return dots


def dot_row(words: Words, passes: int, count: int) -> Any:
    """The word dots(row, row_bytes, x, x_stride, n, y, y_stride, add): a row of weights, of a superblock at least, by
    `count` flat tokens, to or added to y[token]. A superblock's codes are unpacked once for all of them.

    Each place of a group in a superblock has a sum of its own, in a lane here and in a pass of the tile there, and they
    are added up in the same order: so a token's result is the same to the last bit alone and in a batch.
    """
    plain, asking = (loop_word(words, passes, count, fetch) for fetch in (nothing, fetch_word(words)))
    if not target().far_sighted:
        return asking
    if 8 * words.superblock_bytes >= 256 * DENSE:
        return plain

    @inline
    def dots(row: int, row_bytes: int, x: int, x_stride: int, n: int, y: int, y_stride: int, add: int) -> None:
        if n >= LONG:
            asking(row, row_bytes, x, x_stride, n, y, y_stride, add)
        else:
            plain(row, row_bytes, x, x_stride, n, y, y_stride, add)

    return dots


@cache
def kept_words(kind: Any, count: int) -> tuple[Any, Any]:
    """Words for the sums of so many tokens: keep(sums, place), into memory, and kept(place)."""
    size = 4 * kind.lanes

    @inline
    def keep(sums: Any, place: int) -> None:
        store(place, sums[0])

    @inline
    def kept(place: int) -> Any:
        return (load(kind, place),)

    if count == 1:
        return keep, kept
    keep_others, kept_others = kept_words(kind, count - 1)

    @inline
    def keep_all(sums: Any, place: int) -> None:
        keep(sums, place)
        keep_others(sums[1:], place + size)

    @inline
    def kept_all(place: int) -> Any:
        return kept(place) + kept_others(place + size)

    return keep_all, kept_all


def streams_word(words: Words, passes: int, count: int) -> Any:
    """The word streams(first, end, w, row_bytes, x, x_stride, n, y, y_stride, add, sums): rows of weights, of a
    superblock at least, by `count` flat tokens, to or added to y[token]; returns the first row that is left, of less
    than STREAMS. Each stream is neighbours. At `sums` is memory for those of all places."""
    start, add, deliver = tokens_words(words, passes, count)
    keep, kept = kept_words(words.kind, count)
    superblock_bytes, sums_bytes = words.superblock_bytes, 4 * words.groups * count
    lines = -(-superblock_bytes // 64)

    @inline
    def dots(
        row: int, row_bytes: int, apart: int, x: int, x_stride: int, n: int, y: int, y_apart: int, y_stride: int,
        add_to: int, sums: int,
    ) -> None:  # fmt: skip
        columns, last = 256 * superblocks_of(n), row + row_bytes - superblock_bytes
        for stream in range(STREAMS):
            keep(start(), sums + sums_bytes * stream)
        for block in range(columns // 256):
            first = min(row + block * superblock_bytes, last)
            for stream in range(STREAMS):
                at, place = first + apart * stream, sums + sums_bytes * stream
                for line in range(lines):
                    prefetch(at + AHEAD + 64 * line)
                keep(add(at, block, x, x_stride, columns, kept(place)), place)
        for stream in range(STREAMS):
            deliver(kept(sums + sums_bytes * stream), y + y_apart * stream, y_stride, add_to)

    @inline
    def streams(
        first: int, end: int, w: int, row_bytes: int, x: int, x_stride: int, n: int, y: int, y_stride: int, add: int,
        sums: int,
    ) -> Any:  # fmt: skip
        each = (end - first) // STREAMS
        apart, y_apart = each * row_bytes, 4 * each
        for stream in range(STREAMS):
            for ahead in range(0, AHEAD, 64):
                prefetch(w + first * row_bytes + apart * stream + ahead)
        for number in range(first, first + each):
            row, place = w + number * row_bytes, y + 4 * number
            dots(row, row_bytes, apart, x, x_stride, n, place, y_apart, y_stride, add, sums)
        return first + STREAMS * each

    return streams


def in_streams_word(words: Words, passes: int) -> Any:
    """The word in_streams(count, first, ...), which does so for one token, two or three, and nothing for more."""
    one, two, three = (streams_word(words, passes, count) for count in (1, 2, 3))

    @inline
    def in_streams(
        count: int, first: int, end: int, w: int, row_bytes: int, x: int, x_stride: int, n: int, y: int, y_stride: int,
        add: int, sums: int,
    ) -> Any:  # fmt: skip
        if count == 1:
            first = one(first, end, w, row_bytes, x, x_stride, n, y, y_stride, add, sums)
        elif count == 2:
            first = two(first, end, w, row_bytes, x, x_stride, n, y, y_stride, add, sums)
        elif count == 3:
            first = three(first, end, w, row_bytes, x, x_stride, n, y, y_stride, add, sums)
        return first

    return in_streams


@inline
def no_row(
    count: int, first: int, end: int, w: int, row_bytes: int, x: int, x_stride: int, n: int, y: int, y_stride: int,
    add: int, sums: int,
) -> Any:  # fmt: skip
    """Do none of these rows."""
    return first


def matvec(room: str, passes: int) -> Body:
    """The kernel y[token][row] = base[token][row] + w[row] . x[token] for flat tokens; `base` may be 0."""
    words = words_of(room)
    one, two, three, four = (dot_row(words, passes, count) for count in (1, 2, 3, 4))
    pair, pairs = loop_word(words, passes, 1, nothing, both=True), target().far_sighted
    in_streams = in_streams_word(words, passes) if target().follows_pages else no_row
    lengthen, superblock_bytes, token_bytes = lengthen_word(words), words.superblock_bytes, flat_bytes(256, passes)

    def body(tokens, x, w, row_bytes, n_in, n_out, base, base_stride, y, y_stride, stop, part, parts, scratch):
        first, end = share(n_out, 8, part, parts)
        count, x_stride = load(int64, tokens), superblocks_of(n_in) * token_bytes
        size = max(row_bytes, superblock_bytes)
        put_base(base, base_stride, y, y_stride, count, first, end)
        if pairs and count == 1 and superblock_bytes <= row_bytes and n_in < LONG:
            for number in range(first, end - 1, 2):
                pair(w + number * row_bytes, row_bytes, x, 0, n_in, y + 4 * number, 0, base)
            first = end - (end - first) % 2
        if superblock_bytes <= row_bytes:
            first = in_streams(count, first, end, w, row_bytes, x, x_stride, n_in, y, y_stride, base, scratch)
        for number in range(first, end):
            row, place = w + number * row_bytes, y + 4 * number
            if row_bytes < superblock_bytes:
                row = lengthen(row, row_bytes, scratch)
            fours = count // 4 * 4
            for token in range(0, fours, 4):
                four(row, size, x + token * x_stride, x_stride, n_in, place + token * y_stride, y_stride, base)
            rest, left, place = x + fours * x_stride, count - fours, place + fours * y_stride
            if left == 3:
                three(row, size, rest, x_stride, n_in, place, y_stride, base)
            elif left == 2:
                two(row, size, rest, x_stride, n_in, place, y_stride, base)
            elif left:
                one(row, size, rest, x_stride, n_in, place, y_stride, base)

    return body

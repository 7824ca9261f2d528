"""Byte-pair encoding: hash tables of the strings of a vocabulary, and the merging of words into tokens.

A hash table has a power of two of slots, int64, of which at most two thirds are in use. A free slot is 0. In the
others, the high 32 bits are those of a string's hash, and the low ones are the string's index + 1; the string stays in
the file. A string whose slot is taken gets the next free one.

The file has a merge as its two parts with a space between them, "Ġ t". A merge is looked up by two adjacent texts of a
word. Therefore texts need no ids while they are merged, and need not be tokens.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from numba import int32, int64, uint8

from localinfer.kernels.bpe_signatures import CONTROL_TOKEN, LINE_BREAKS, NO_TOKEN, WORDS
from quant.jit.vectors import inline, load, store

Body = Callable[..., None]

LOW_BITS = (1 << 32) - 1
MULTIPLIER = 0x1E3779B97F4A7C15  # any odd number with irregular bits
SPACE, LINE_BREAK = 32, 10
NO_SYMBOL = -1
MEAN_PROBES = 16  # slots looked at per string, on average; about 2 unless somebody made the strings collide


class StringTable(NamedTuple):
    """A hash table, and where the strings are: string i begins at data + offsets[i] and has lengths[i] bytes."""

    slots: int
    mask: int
    data: int
    offsets: int
    lengths: int


class Pair(NamedTuple):
    """Two adjacent texts. They are found as one string, in a table of merges with `gap` = 1: a space between them."""

    left: int
    left_size: int
    right: int
    right_size: int
    gap: int


@inline
def read_table(record: int) -> Any:
    """Return the string table whose five fields are stored at an address."""
    return StringTable(
        load(int64, record), load(int64, record + 8), load(int64, record + 16), load(int64, record + 24),
        load(int64, record + 32),
    )  # fmt: skip


# --- hash tables --------------------------------------------------------------------------------------------------


@inline
def scramble(number: int) -> Any:
    """Return the number with its bits mixed. No two numbers give the same one."""
    product = number * MULTIPLIER
    return product ^ (product >> 32 & LOW_BITS)


@inline
def hash_text(address: int, size: int) -> Any:
    """Return the hash of a text."""
    found, at, end = size, address, address + size
    while at + 8 <= end:
        found = scramble(found ^ load(int64, at))
        at += 8
    rest = 0
    while at < end:
        rest = rest << 8 | int64(load(uint8, at))
        at += 1
    return scramble(found ^ rest)


@inline
def hash_pair(left: int, right: int) -> Any:
    """Return the hash of a merge from the hashes of its parts."""
    return scramble(scramble(left) ^ right)


@inline
def differ(a: int, b: int, size: int) -> Any:
    """Return whether two texts of the same size differ."""
    i = 0
    while i + 8 <= size:
        if load(int64, a + i) != load(int64, b + i):
            return True
        i += 8
    while i < size:
        if load(uint8, a + i) != load(uint8, b + i):
            return True
        i += 1
    return False


@inline
def equals(table: StringTable, index: int, pair: Pair) -> Any:
    """Return whether a string of the table is this pair."""
    if load(int64, table.lengths + 8 * index) != pair.left_size + pair.gap + pair.right_size:
        return False
    at = table.data + load(int64, table.offsets + 8 * index)
    if differ(at, pair.left, pair.left_size):
        return False
    at += pair.left_size
    if pair.gap and load(uint8, at) != SPACE:
        return False
    return not differ(at + pair.gap, pair.right, pair.right_size)


@inline
def find(table: StringTable, pair: Pair, hashed: int) -> Any:
    """Return the index of a string, or NO_TOKEN."""
    slot = hashed & table.mask
    while True:
        entry = load(int64, table.slots + 8 * slot)
        if entry == 0:
            return NO_TOKEN
        if (entry ^ hashed) >> 32 == 0 and equals(table, (entry & LOW_BITS) - 1, pair):
            return (entry & LOW_BITS) - 1
        slot = slot + 1 & table.mask


@inline
def insert(table: StringTable, index: int, pair: Pair, hashed: int) -> Any:
    """Insert a string, in place of an equal one. Return how many slots were looked at."""
    slot, probes = hashed & table.mask, 1
    while True:
        entry = load(int64, table.slots + 8 * slot)
        if entry == 0 or ((entry ^ hashed) >> 32 == 0 and equals(table, (entry & LOW_BITS) - 1, pair)):
            store(table.slots + 8 * slot, hashed & ~LOW_BITS | index + 1)
            return probes
        slot = slot + 1 & table.mask
        probes += 1


def index_strings() -> Body:
    """Make the kernel that fills the table at `table` with all `count` strings; of equal ones the last remains.
    `gap` is 1 for merges.

    result = the number of strings, or fewer if too many of them collide.
    """

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        table, probes, index = read_table(args.table), 0, 0
        while index < args.count and probes <= MEAN_PROBES * args.count:
            at, size = table.data + load(int64, table.offsets + 8 * index), load(int64, table.lengths + 8 * index)
            left_size = size
            if args.gap:
                left_size = 0
                while left_size < size and load(uint8, at + left_size) != SPACE:
                    left_size += 1
            right, right_size = at + left_size + args.gap, size - left_size - args.gap
            hashed = hash_text(at, left_size)
            if args.gap:
                hashed = hash_pair(hashed, hash_text(right, right_size))
            probes += insert(table, index, Pair(at, left_size, right, right_size, args.gap), hashed)
            index += 1
        store(args.result, index)

    return body


# --- symbols: the parts of a word, in a linked list -----------------------------------------------------------------

TEXT, SIZE, HASH, ID, NEXT, PREVIOUS, SYMBOL_BYTES = range(0, 56, 8)
KEY, TOTAL, ENTRY_BYTES = range(0, 24, 8)  # of the heap: the rank and the left symbol, the bytes of both symbols


class Merger(NamedTuple):
    """What merging needs: the tables of tokens and of merges, which tokens text may become, and memory."""

    tokens: StringTable
    merges: StringTable
    mergeable: int
    symbols: int
    heap: int


@inline
def find_token(merger: Merger, text: int, size: int, hashed: int) -> Any:
    """Return the id of a token, CONTROL_TOKEN if text must not become it, NO_TOKEN if there is none."""
    id = find(merger.tokens, Pair(text, size, text, 0, 0), hashed)
    if id >= 0 and load(uint8, merger.mergeable + id) == 0:
        return CONTROL_TOKEN
    return id


@inline
def set_symbol(merger: Merger, index: int, text: int, size: int) -> None:
    """Make a symbol of a text, or leave it as it is if the text is a control token."""
    at, hashed = merger.symbols + SYMBOL_BYTES * index, hash_text(text, size)
    store(at + TEXT, text)
    store(at + SIZE, size)
    store(at + HASH, hashed)
    store(at + ID, find_token(merger, text, size, hashed))


@inline
def push(heap: int, count: int, key: int, total: int) -> None:
    """Add an entry to a heap that has `count` entries, the lowest key first."""
    child = count
    while child > 0:
        parent = (child - 1) // 2
        if load(int64, heap + ENTRY_BYTES * parent + KEY) <= key:
            break
        store(heap + ENTRY_BYTES * child + KEY, load(int64, heap + ENTRY_BYTES * parent + KEY))
        store(heap + ENTRY_BYTES * child + TOTAL, load(int64, heap + ENTRY_BYTES * parent + TOTAL))
        child = parent
    store(heap + ENTRY_BYTES * child + KEY, key)
    store(heap + ENTRY_BYTES * child + TOTAL, total)


@inline
def drop_first(heap: int, count: int) -> None:
    """Remove the first entry of a heap that has `count` entries."""
    last = heap + ENTRY_BYTES * (count - 1)
    key, total = load(int64, last + KEY), load(int64, last + TOTAL)
    parent = 0
    while True:
        child = 2 * parent + 1
        if child >= count - 1:
            break
        here = heap + ENTRY_BYTES * child
        if child + 1 < count - 1 and load(int64, here + ENTRY_BYTES + KEY) < load(int64, here + KEY):
            child += 1
            here += ENTRY_BYTES
        if load(int64, here + KEY) >= key:
            break
        store(heap + ENTRY_BYTES * parent + KEY, load(int64, here + KEY))
        store(heap + ENTRY_BYTES * parent + TOTAL, load(int64, here + TOTAL))
        parent = child
    store(heap + ENTRY_BYTES * parent + KEY, key)
    store(heap + ENTRY_BYTES * parent + TOTAL, total)


@inline
def push_pair(merger: Merger, count: int, left: int) -> Any:
    """Add the pair that begins with the symbol `left` to the heap, if there is a merge of it. Return the number of
    entries."""
    at = merger.symbols + SYMBOL_BYTES * left
    right = load(int64, at + NEXT)
    if right == NO_SYMBOL:
        return count
    other = merger.symbols + SYMBOL_BYTES * right
    if load(int64, at + ID) == CONTROL_TOKEN or load(int64, other + ID) == CONTROL_TOKEN:
        return count
    size, other_size = load(int64, at + SIZE), load(int64, other + SIZE)
    pair = Pair(load(int64, at + TEXT), size, load(int64, other + TEXT), other_size, 1)
    rank = find(merger.merges, pair, hash_pair(load(int64, at + HASH), load(int64, other + HASH)))
    if rank < 0:
        return count
    push(merger.heap, count, rank << 32 | left, size + other_size)
    return count + 1


@inline
def merge_symbols(merger: Merger, left: int, total: int) -> Any:
    """Merge a symbol and the next one, which have `total` bytes together. Return whether they are merged: not if the
    heap's entry is outdated, or if they would make a control token.

    An entry is outdated if one of its symbols has been merged: then the left one is empty, or both have more bytes.
    """
    at = merger.symbols + SYMBOL_BYTES * left
    right, size, text = load(int64, at + NEXT), load(int64, at + SIZE), load(int64, at + TEXT)
    if size == 0 or right == NO_SYMBOL:
        return False
    other = merger.symbols + SYMBOL_BYTES * right
    if size + load(int64, other + SIZE) != total:
        return False
    hashed = hash_text(text, total)
    id = find_token(merger, text, total, hashed)
    if id == CONTROL_TOKEN:
        return False
    following = load(int64, other + NEXT)
    store(at + SIZE, total)
    store(at + HASH, hashed)
    store(at + ID, id)
    store(at + NEXT, following)
    store(other + SIZE, int64(0))
    if following != NO_SYMBOL:
        store(merger.symbols + SYMBOL_BYTES * following + PREVIOUS, left)
    return True


@inline
def merge(merger: Merger) -> None:
    """Merge the pair of lowest rank, the leftmost first, until there is no merge of any pair."""
    count, begin, end = 0, 0, NO_SYMBOL  # pairs that begin with the symbols from `begin` to `end` are new
    while True:
        while begin != NO_SYMBOL:
            count = push_pair(merger, count, begin)
            begin = load(int64, merger.symbols + SYMBOL_BYTES * begin + NEXT) if begin != end else NO_SYMBOL
        if count == 0:
            break
        left, total = load(int64, merger.heap + KEY) & LOW_BITS, load(int64, merger.heap + TOTAL)
        drop_first(merger.heap, count)
        count -= 1
        if merge_symbols(merger, left, total):
            previous = load(int64, merger.symbols + SYMBOL_BYTES * left + PREVIOUS)
            begin, end = previous if previous != NO_SYMBOL else left, left


# --- words ----------------------------------------------------------------------------------------------------------


@inline
def character_size(first: int) -> Any:
    """Return the bytes of a character in UTF-8 by its first byte."""
    return 1 if first < 0x80 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4


@inline
def skip_characters(text: int, count: int) -> Any:
    """Return the address behind `count` characters of UTF-8."""
    at = text
    for _ in range(count):
        at += character_size(int64(load(uint8, at)))
    return at


@inline
def encode_bytes(alphabet: int, text: int, end: int, out: int) -> Any:
    """Write each byte as the vocabulary writes it: one or two bytes of UTF-8. Return the end of what was written."""
    at = out
    for source in range(text, end):
        letter = alphabet + 2 * int64(load(uint8, source))
        store(at, load(uint8, letter))
        at += 1
        if load(uint8, letter + 1):
            store(at, load(uint8, letter + 1))
            at += 1
    return at


@inline
def make_symbols(merger: Merger, text: int, end: int) -> None:
    """Make one symbol of each character."""
    at, index = text, 0
    while at < end:
        size = character_size(int64(load(uint8, at)))
        set_symbol(merger, index, at, size)
        here = merger.symbols + SYMBOL_BYTES * index
        store(here + NEXT, index + 1)
        store(here + PREVIOUS, index - 1)
        at += size
        index += 1
    store(merger.symbols + SYMBOL_BYTES * (index - 1) + NEXT, int64(NO_SYMBOL))


@inline
def write_ids(merger: Merger, byte_ids: int, out: int) -> Any:
    """Write the ids of all symbols, and for a text without a token those of its bytes. Return the end."""
    index, end = 0, out
    while index != NO_SYMBOL:
        at = merger.symbols + SYMBOL_BYTES * index
        id = load(int64, at + ID)
        if id >= 0:
            store(end, int32(id))
            end += 4
        else:
            text = load(int64, at + TEXT)
            for here in range(text, text + load(int64, at + SIZE)):
                byte_id = load(int32, byte_ids + 4 * int64(load(uint8, here)))
                if byte_id >= 0:
                    store(end, byte_id)
                    end += 4
        index = load(int64, at + NEXT)
    return end


def merge_words() -> Body:
    """Make the kernel that writes the ids of words of a text to `ids`, and their number to `result`.

    `spans` has the first and the last + 1 character of each of `count` words, which are in order. `alphabet` has two
    bytes for each byte (see `encode_bytes`), and `encoded` memory for a word that is written so; both are 0 if the
    vocabulary has characters. `unmerged` tells which words that are tokens are not built from merges.
    """

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        merger = Merger(read_table(args.tokens), read_table(args.merges), args.mergeable, args.symbols, args.heap)
        at, character, out = args.text, 0, args.ids
        for word in range(args.spans, args.spans + 16 * args.count, 16):
            first, last = load(int64, word), load(int64, word + 8)
            text = skip_characters(at, first - character)
            end = skip_characters(text, last - first)
            at, character = end, last
            if args.alphabet:
                end = encode_bytes(args.alphabet, text, end, args.encoded)
                text = args.encoded
            if text == end:
                continue
            id = NO_TOKEN
            breaks_lines = args.unmerged == LINE_BREAKS and load(uint8, text) == LINE_BREAK
            if args.unmerged == WORDS or breaks_lines:
                id = find_token(merger, text, end - text, hash_text(text, end - text))
            if id >= 0:
                store(out, int32(id))
                out += 4
            else:
                make_symbols(merger, text, end)
                merge(merger)
                out = write_ids(merger, args.byte_ids, out)
        store(args.result, (out - args.ids) // 4)

    return body

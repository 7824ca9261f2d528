"""Where quantized activations lie in memory: what the kernels that write them and those that read them agree on.

Facts only, without numba: a plan must know sizes before anything is compiled.

Every 32 values of a token (a group) become whole numbers with one scale. They are kept in 1 or 2 signed bytes:
1 rounds to 8 bits; 2 are a number of 15 bits, q = 128 * high + low, and a pass of an 8-bit dot product over each
gives the exact product with the weights' codes.

Two layouts of the n values of a token, both in superblocks of 256 columns, eight groups. Where n is no multiple of
that, the last superblock is the last 256 columns: it begins with groups that the one before it has, too, or that do not
exist, and its own are the last of its eight places.

`flat`, for a few tokens, has the bytes in several orders, so that a format
finds them in the order in which its own bytes hold the columns:

    bytes[orders][passes][N]  scale[N/32]  sums32[N/32]  sums16[N/16]  totals32[N/32]  totals16[N/16]  (unused)[N/8]

N is the columns of all superblocks. Of groups that the last one does not own, scales, sums and totals are 0, and the
bytes mean nothing.

`tiled`, for many: tiles of T tokens, a record for every group:

    bytes[passes][32/D][T][D]  scale[T]  shift[T]  sums32[T]  sums16[2][T]  starts32[T]  starts16[2][T]

The records of groups that stand at the same place of their superblocks are neighbours, because the matrix kernel sums
up one place after the other (`quant.products.tile`): first those of groups 0, 8, 16, ..., then 1, 9, 17, ...

D is the target's depth, the columns that one instruction adds up. A total is the sum of the whole numbers, int32; a sum
is the total times the scale, float32. A format multiplies the one with its codes' zero, the other with what it adds to
its scaled codes. The shift is `-MAGIC * scale`.

Where the target's instruction takes any byte, panels have the zero of all formats at ZERO. What a sum of products with
such codes starts from is then one number, a start: what that zero takes away, and MAGIC for sums that begin there.
Elsewhere the start is the total.
"""

from quant.jit.cpu import target

# The largest whole number, by passes: 127, and 127 * 128 + 63, what two signed bytes of this form can hold.
LARGEST = {1: 127, 2: 16_319}

ZERO = 128  # of codes in panels, where any byte may be one
PLACES = 8  # groups of a superblock

# Rows of a tiled record behind the bytes, each a number for every token.
SCALE, SHIFT, SUMS32, SUMS16, STARTS32, STARTS16, ROWS = 0, 1, 2, 3, 5, 6, 8

# 1.5 * 2^23: added to a whole number below 2^22, its float32 has that number in its low bits.
MAGIC = 12_582_912
MAGIC_BITS = 0x4B400000


# The orders of a superblock of 256 columns, that is, eight groups of 32.
#   columns   as they are
#   halves    the first 16 of groups 0 1 2 3, their second 16; then the same of 4 5 6 7
#   evens     the first 16 of groups 0 2 4 6, their second 16; then the same of 1 3 5 7
#   fours     groups 0 4, 1 5, 2 6, 3 7
ORDERS = ("columns", "halves", "evens", "fours")


def superblocks(n: int) -> int:
    """How many n columns need: also the room of a place, in records."""
    return (n + 255) // 256


def slot_of(group: int, groups: int) -> int:
    """The number of one of so many groups, where superblocks have eight."""
    return group if group < groups // PLACES * PLACES else group + PLACES - groups % PLACES


def flat_bytes(n: int, passes: int) -> int:
    """What a flat token of n values takes."""
    return 256 * superblocks(n) * (len(ORDERS) * passes + 1)


def starts_with_magic(passes: int) -> bool:
    """Whether sums are small enough to start from MAGIC, which makes them floats without a conversion."""
    return passes == 1 and target().fused


def record_bytes(tile: int, passes: int) -> int:
    """What a group of a tile takes."""
    return 32 * (passes + 1) * tile


def record_number(slot: int, room: int) -> int:
    """Which one of a tile's records is that of a slot, where places have so much room."""
    return slot % PLACES * room + slot // PLACES


def tiled_bytes(n: int, passes: int) -> int:
    """What the n values of a token take in a tile."""
    return PLACES * superblocks(n) * record_bytes(1, passes)


RUN_WORDS = 3  # of what says which rows meet which matrix: see `quant.products.experts`


# --- panels of unpacked weights: see `quant.products.panels` ---

STRETCH = 1024  # columns of a row that are written down before the next row's: the nearest cache holds 16 rows' notes
CODES_STEP = STRETCH + 64  # from row to row of codes; no power of two, because caches hold few of the same remainder
SCALES_STEP = 4 * (STRETCH // 16) + 64  # from row to row of scales, and of mins
FEW_TILES = 2  # that stay near
CACHE_BYTES = 400 << 10  # for panels: what a core's second cache holds beside a tile of activations
AT_LEAST = 8  # panels that are made at a time for many tiles, however long rows are: these come from far away


def matmul_scratch_bytes(n_in: int) -> int:
    """What a thread needs for rows of n_in weights of any format: tiles of all places, rows written down, panels."""
    here = target()
    sums = max(16 * 4 * here.rows * here.tokens, 64 * here.sums)
    panels = AT_LEAST * PLACES * superblocks(n_in) * 48 * here.rows
    return sums + here.rows * (CODES_STEP + 2 * SCALES_STEP) + max(panels, CACHE_BYTES)

"""The memory layout of quantized activations, shared by the kernels that write them and those that read them.

This module does not import numba: the compute graph needs sizes before anything is compiled.

Every 32 values of a token (a group) become integers with one scale. They are stored in 1 or 2 signed bytes, according
to the number of passes. One pass rounds to 8 bits. Two passes store a 15-bit integer q = 128 * high + low; an 8-bit dot
product over each byte gives the exact product with the weights' codes.

There are two layouts of a token's n values, both in superblocks of 256 columns, which are eight groups. If n is no
multiple of 256, the last superblock is the last 256 columns: it begins with groups that also belong to the superblock
before it, or that do not exist. Its own groups come last.

`flat`, for few tokens, has the bytes in several orders, so that a format finds them in the order of columns in its own
bytes:

  bytes[orders][passes][N]  scale[N/32]  sums32[N/32]  sums16[N/16]  totals32[N/32]  totals16[N/16]  (unused)[N/8]

N is the number of columns of all superblocks. For groups that the last superblock repeats, scales, sums and totals are
0, and the bytes are undefined.

`tiled`, for many tokens: tiles of T tokens, with one record for each group:

  bytes[passes][32/D][T][D]  scale[T]  shift[T]  sums32[T]  sums16[2][T]  starts32[T]  starts16[2][T]

Records of groups at the same position of their superblocks are adjacent, because the matrix kernel sums up one position
after the other (`quant.matmul.tile`): first groups 0, 8, 16, ..., then 1, 9, 17, ...

D is the target's depth: the number of columns that one instruction adds up. A total is the int32 sum of the integers. A
sum is the total times the scale, in float32. A format multiplies totals by its zero point, and sums by its mins. The
shift is `-MAGIC * scale`.

If the register tile multiplies signed codes, panels have the codes minus the zero point, and starts are not read.
Otherwise, if the dot product instruction is exact for all bytes, panels use the zero point PANEL_ZERO_POINT for all
formats that have one. The initial value of a sum of products is then a single number, the start: the zero point's
contribution, plus MAGIC for sums that begin there. In all other cases the stored start is the total.
"""

from quant.jit.cpu import target

# The largest integer for each number of passes: 127, and 127 * 128 + 63, the most that two signed bytes can represent.
MAX_QUANT = {1: 127, 2: 16_319}

PANEL_ZERO_POINT = 128  # zero point of codes in panels, if codes use the full byte range
GROUPS_PER_SUPERBLOCK = 8  # the positions of groups in a superblock

# Rows of a tiled record after the bytes. Each has one number per token.
SCALE, SHIFT, SUMS32, SUMS16, STARTS32, STARTS16, RECORD_ROWS = 0, 1, 2, 3, 5, 6, 8

# 1.5 * 2^23. The float32 sum of MAGIC and an integer below 2^22 has that integer in its low bits.
MAGIC = 12_582_912
MAGIC_BITS = 0x4B400000


# The orders of the columns of a superblock, which has eight groups of 32 columns.
#   columns   as they are
#   halves    the first 16 of groups 0 1 2 3, their second 16; then the same of 4 5 6 7
#   evens     the first 16 of groups 0 2 4 6, their second 16; then the same of 1 3 5 7
#   pairs     groups 0 4, 1 5, 2 6, 3 7
ORDERS = ("columns", "halves", "evens", "pairs")


def n_superblocks(n: int) -> int:
    """Return the number of superblocks for n columns. It is also the number of records for each position of a group."""
    return (n + 255) // 256


def padded_group(group: int, groups: int) -> int:
    """Return the index of a group, counting the last superblock's repeated groups, so that each superblock
    has eight.
    """
    whole = groups // GROUPS_PER_SUPERBLOCK * GROUPS_PER_SUPERBLOCK
    return group if group < whole else group + GROUPS_PER_SUPERBLOCK - groups % GROUPS_PER_SUPERBLOCK


def flat_bytes(n: int, passes: int) -> int:
    """Return the size in bytes of a flat token of n values."""
    return 256 * n_superblocks(n) * (len(ORDERS) * passes + 1)


def starts_with_magic(passes: int) -> bool:
    """Return whether sums are small enough to start from MAGIC, which makes them floats without a conversion."""
    return passes == 1 and target().has_fma


def has_two_conversions(passes: int) -> bool:
    """Return whether register tiles have two ways to make floats of sums that begin with MAGIC, with the same bits: to
    add the stored shift while multiplying, or to subtract MAGIC first.

    The subtraction is an instruction more, and a load less. Tiles of AVX-512 have one vector of rows, so they load a
    number for every product, and CPUs differ in whether loads or arithmetic limit them.
    """
    return starts_with_magic(passes) and target().isa == "avx512vnni"


def record_bytes(tile: int, passes: int) -> int:
    """Return the size in bytes of a group's record in a tile of `tile` tokens."""
    return 32 * (passes + 1) * tile


def record_index(group: int, place_records: int) -> int:
    """Return the index of a group's record in a tile, where each position of a superblock has
    `place_records` records.
    """
    return group % GROUPS_PER_SUPERBLOCK * place_records + group // GROUPS_PER_SUPERBLOCK


def tiled_bytes(n: int, passes: int) -> int:
    """Return the size in bytes of a token's n values in a tile."""
    return GROUPS_PER_SUPERBLOCK * n_superblocks(n) * record_bytes(1, passes)


RUN_WORDS = 3  # 8-byte words that describe a run: see `quant.matmul.experts`


# --- panels of unpacked weights: see `quant.matmul.panels` ---

# Columns of a row that are unpacked before the next row's: the first-level cache holds the unpacked codes of 16 rows.
UNPACK_COLUMNS = 1024
# The distance between rows of unpacked codes. A power of two would map all rows to the same cache sets.
CODES_STRIDE = UNPACK_COLUMNS + 64
SCALES_STRIDE = 4 * (UNPACK_COLUMNS // 16) + 64  # between rows of unpacked scales, and of mins
CACHED_TILES = 2  # tiles of activations that stay in the cache
PANEL_CACHE_BYTES = 400 << 10  # panels that fit into a core's second-level cache beside a tile of activations
MIN_PANELS = 8  # unpacked at a time for many tiles, however long rows are, because tiles are read from far memory
# Records whose integer sums are in memory at a time, if the CPU has outer products: few enough to stay in the caches.
OUTER_RECORDS = 32


def integer_sums_bytes(passes: int) -> int:
    """Return the size of the integer sums that a tile has in memory: see `quant.matmul.outer_tile`."""
    here = target()
    return 4 * here.rows * here.tokens * passes * OUTER_RECORDS if here.has_outer_products else 0


def matmul_scratch_bytes(n_in: int) -> int:
    """Return the scratch bytes per thread for rows of n_in weights of any format: a tile's sums, unpacked rows, and
    panels.
    """
    here = target()
    sums = max(16 * 4 * here.rows * here.tokens, 64 * here.accumulators)
    panels = MIN_PANELS * GROUPS_PER_SUPERBLOCK * n_superblocks(n_in) * 48 * here.rows
    sums += integer_sums_bytes(max(MAX_QUANT))
    return sums + here.rows * (CODES_STRIDE + 2 * SCALES_STRIDE) + max(panels, PANEL_CACHE_BYTES)

"""What kernels and the plan that calls them must agree on, as numbers: sizes in memory, and places in it."""

from quant.jit.cpu import target

# The words that threads share, each in cache lines of its own: see `localinfer.ops.execute`.
LINE = 128  # bytes: two lines of x86, which are fetched together, or one of Apple's
STAGE, FINISHED, ENTERED, LANES = 0, LINE, 2 * LINE, 3 * LINE

BLOCK = 64  # cells that attention takes at a time
PANEL = 16  # cells whose keys stand side by side
EVERYTHING = 1 << 30  # a window that nothing falls out of
CELL_BYTES = {"f32": 128, "f16": 64, "q8_0": 34, "q4_0": 18}  # of 32 values in the cache: see `localinfer.ops.cells`
ANCHORED = {"q8_0": "q8_0_anchored", "q4_0": "q4_0_anchored"}  # types of keys of which blocks have an anchor
MOST_ROWS = 16  # of a tile, for a token or two: so many heads that share a key head read the cells once
SEGMENT_WORDS = 3  # of a segment of a batch: see `localinfer.ops.segments`
PLENTY = 32  # tiles of queries that are work for all threads; of fewer, they share the cells
ENOUGH = 8  # the same where there is nothing but whole tiles to share


def block_bytes(kind: str, dim: int, *, anchored: bool = False) -> int:
    """The bytes of a block of keys or values, cells of so many dimensions, with its anchor in halves if it has one."""
    return BLOCK * dim // 32 * CELL_BYTES[kind] + (2 * dim if anchored else 0)


# Time stamps, in front of a thread's scratch memory: how many there are, then words for each.
STAMPS_BYTES = 1 << 20
STAMPS_FIRST, STAMP_WORDS = 64, 3


def sync_bytes(threads: int) -> int:
    """The bytes of the words that so many threads share."""
    return LANES + LINE * threads


def tile_rows(group: int, many: bool) -> int:
    """The rows of a tile of queries: of a token or two, the heads that share a key head, all or an even share of them;
    in a prompt at least as many as registers hold."""
    few = -(-group // -(-group // MOST_ROWS))
    return max(few, target().sums // 2) if many else few


def row_bytes(value_dim: int) -> int:
    """The bytes of a row's state: its largest score in 64, sixteen parts of its denominator, its sums."""
    return 128 + 4 * value_dim


def weights_bytes(rows: int) -> int:
    """A block's weights for a tile of rows; behind them the same once more, or 32 dimensions of the block's keys."""
    return 4 * BLOCK * (rows + max(rows, 32))


def attention_scratch_bytes(group: int, key_dim: int, value_dim: int) -> int:
    """What a thread needs: a tile's queries, plain and for sinks, a block's weights, positions, two states."""
    rows = max(tile_rows(group, many) for many in (False, True))
    return rows * (8 * key_dim + 64) + weights_bytes(rows) + 2 * rows * row_bytes(value_dim)


LANES_OF_SCAN = 16  # columns that a selective scan takes at a time
STRIP = 64  # columns that a convolution takes at a time


def state_strip(value: int) -> int:
    """Columns of a recurrent head's state that lie together; so many of all must be whole strips."""
    return 32 if value % 32 == 0 else 16


def scan_scratch_bytes(size: int) -> int:
    """What a thread needs: a strip's rates of forgetting."""
    return 4 * LANES_OF_SCAN * size


def convolution_scratch_bytes(width: int) -> int:
    """What a thread needs: a strip's weights."""
    return 4 * STRIP * width


def append_scratch_bytes(key_dim: int, value_dim: int) -> int:
    """What a thread needs for a block of codes, a head and an anchor."""
    return 128 + 4 * max(key_dim, value_dim) + 4 * key_dim


# --- measuring: see `localinfer.ops.measure` ---

WIDE = 64  # bytes of memory that are read at a time
OPERAND_RING = 8  # places that operands are taken from in turn: few enough to stay in the nearest cache
OPERAND_BYTES = {"dot": 1, "fma": 4, "pair": 2}


def products_shape(kind: str) -> tuple[int, int, int]:
    """Rows, tokens and columns of a round of products: the matrix kernels' tile, or sums of sixteen that fill the
    registers."""
    if kind == "dot":
        return target().rows, target().tokens, 32
    columns = WIDE // OPERAND_BYTES[kind]
    return (4, 6, columns) if target().sums >= 24 else (2, 3, columns)


def round_bytes(kind: str) -> int:
    """The operands of a round."""
    rows, tokens, columns = products_shape(kind)
    return OPERAND_BYTES[kind] * columns * (rows + tokens)

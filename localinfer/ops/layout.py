"""What kernels and the plan that calls them must agree on, as numbers: sizes in memory, and places in it."""

from quant.cpu import target

# The words that threads meet at, each in a cache line of its own: see `localinfer.ops.execute`.
ARRIVED, ROUND, STOP, HALTED = 0, 64, 128, 192
SYNC_BYTES = 256

BLOCK = 64  # cells that attention takes at a time
EVERYTHING = 1 << 30  # a window that nothing falls out of


def tile_rows(group: int, many: bool) -> int:
    """The rows of a tile of queries: as many as registers hold in a prompt, the heads that share a key head for a
    single token."""
    return max(group, target().sums // 2) // group * group if many else group


def state_bytes(rows: int, head_dim: int) -> int:
    """The bytes of a tile's state: 64 for each row's largest score and denominator, then its sums."""
    return rows * (64 + 4 * head_dim)


def attention_scratch_bytes(group: int, head_dim: int) -> int:
    """What a thread needs: a tile's queries, plain and for sinks, a block's weights, positions, two states."""
    rows = tile_rows(group, many=True)
    return rows * (8 * head_dim + 4 * BLOCK + 64) + 2 * state_bytes(rows, head_dim)


# --- measuring: see `localinfer.ops.measure` ---

WIDE = 64  # bytes that are read at a time, of memory and of operands
OPERAND_RING = 8  # places that operands are taken from in turn: few enough to stay in the nearest cache


def product_tile() -> tuple[int, int]:
    """A tile of products, each with a sum of sixteen lanes, that fills the registers and leaves room for operands."""
    return (4, 6) if target().sums >= 24 else (2, 3)


def operand_bytes() -> int:
    """The memory of a thread that operands are read from."""
    return OPERAND_RING * WIDE * sum(product_tile())

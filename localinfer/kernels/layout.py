"""Sizes and offsets that kernels and the compute graph share."""

from quant.jit.cpu import target

# Offsets of the threads' synchronization variables, in separate cache lines: see `localinfer.kernels.executor`.
SYNC_LINE_BYTES = 128  # two x86 cache lines, which are prefetched together, or one of Apple CPUs
SYNC_STAGE, SYNC_FINISHED, SYNC_ENTERED, SYNC_THREADS = 0, SYNC_LINE_BYTES, 2 * SYNC_LINE_BYTES, 3 * SYNC_LINE_BYTES
SYNC_GROUP = 8  # threads that count their finished chunks together; their counters follow the lines of all threads

# Offsets of the thread pool's state, which runs of the graph do not reset: see `localinfer.kernels.workers`.
POOL_ACTIVE, POOL_WORKERS = 0, 8  # threads that the ops of a run are divided for; workers that take part in it
POOL_FINISHED, POOL_THREADS = SYNC_LINE_BYTES, 2 * SYNC_LINE_BYTES
WORKER_SCRATCH = 8  # in the line of a thread, after its state
WORKER_ASLEEP, WORKER_WAITING, WORKER_RUNNING = 0, 1, 2  # states; a worker that is asleep is in Python

PAGE_SIZE = 64  # KV cache entries per page, which attention processes together
PANEL_KEYS = 16  # entries whose keys are interleaved
# A row of the biases of scores by the distance of the key has those of the distances -FIRST_BIAS to FIRST_BIAS - 1, all
# of which are the same beyond MAX_BIAS_DISTANCE.
MAX_BIAS_DISTANCE = 128
FIRST_BIAS = MAX_BIAS_DISTANCE + PANEL_KEYS
BIAS_ROW = 2 * FIRST_BIAS
UNLIMITED_WINDOW = 1 << 30  # a window that includes all positions
GROUP_BYTES = {
    "f32": 128,
    "f16": 64,
    "q8_0": 34,
    "q4_0": 18,
}  # bytes of 32 cached values: see `cache_types`
ANCHORED_TYPES = {"q8_0": "q8_0_anchored", "q4_0": "q4_0_anchored"}  # types of keys with an anchor per page
MAX_DECODE_ROWS = 16  # maximum rows of a tile in small batches: query heads that share a key head read the keys once
SEGMENT_WORDS = 3  # int64 words per segment: see `localinfer.kernels.segments`
MIN_TILES_UNSPLIT = 32  # with fewer tiles of queries, threads divide the cache into chunks
MIN_WHOLE_TILES = 8  # the same limit if the cache is a single chunk
RADIX_DIGITS = 256  # of the radix selection of the largest scores: see `localinfer.kernels.attention.indexer`
RADIX_BYTES = 8 * RADIX_DIGITS  # their counters


def page_bytes(kind: str, dim: int, *, anchored: bool = False) -> int:
    """Return the bytes of a page of keys or values of size `dim`, including its anchor if it has one."""
    return PAGE_SIZE * dim // 32 * GROUP_BYTES[kind] + (2 * dim if anchored else 0)


# Timestamps, before a thread's scratch memory: their number, then TIMESTAMP_WORDS words for each.
TIMESTAMPS_BYTES = 8 << 20  # pages that are not used take no memory
TIMESTAMPS_OFFSET, TIMESTAMP_WORDS = 64, 3


def sync_bytes(threads: int) -> int:
    """Return the bytes of the synchronization variables of this many threads."""
    return SYNC_THREADS + SYNC_LINE_BYTES * (threads + -(-threads // SYNC_GROUP))


def pool_bytes(threads: int) -> int:
    """Return the bytes of the state of a pool of this many threads."""
    return POOL_THREADS + SYNC_LINE_BYTES * threads


def tile_rows(group: int, large_batch: bool) -> int:
    """Return the rows of a tile of queries.

    In small batches, these are the query heads that share a key head, all of them or an equal fraction. In large
    batches, there are at least as many as registers can hold.
    """
    rows = -(-group // -(-group // MAX_DECODE_ROWS))
    return max(rows, target().accumulators // 2) if large_batch else rows


def row_state_bytes(value_dim: int) -> int:
    """Return the bytes of a row's softmax state: its maximum (64 bytes), 16 partial denominators, and the weighted
    sums."""
    return 128 + 4 * value_dim


def page_weights_bytes(rows: int) -> int:
    """Return the bytes of a page's weights for a tile, plus scratch for the scaled weights or for 32 transposed
    dimensions of the page's keys."""
    return 4 * PAGE_SIZE * (rows + max(rows, 32))


def attention_scratch_bytes(group: int, key_dim: int, value_dim: int) -> int:
    """Return a thread's scratch bytes: a tile's queries in two layouts, plain and for sinks, a page's weights, spans,
    and two states. See `localinfer.kernels.attention.tile_scratch`."""
    rows = max(tile_rows(group, large_batch) for large_batch in (False, True))
    return rows * (16 * key_dim + 64) + page_weights_bytes(rows) + 2 * rows * row_state_bytes(value_dim)


SCAN_STRIP = 16  # columns per strip of a selective scan
CONVOLUTION_STRIP = 64  # columns per strip of a convolution


def state_strip(value: int) -> int:
    """Return the columns of a recurrent state that are stored together; head sizes must be multiples of it."""
    return 32 if value % 32 == 0 else 16


def scan_scratch_bytes(size: int) -> int:
    """Return a thread's scratch bytes: the decay rates of a strip."""
    return 4 * SCAN_STRIP * size


def convolution_scratch_bytes(width: int) -> int:
    """Return a thread's scratch bytes: the weights of a strip."""
    return 4 * CONVOLUTION_STRIP * width


def append_scratch_bytes(key_dim: int, value_dim: int) -> int:
    """Return a thread's scratch bytes: 32 encoded values, a head and an anchor."""
    return 128 + 4 * max(key_dim, value_dim) + 4 * key_dim


LOW_RANK_PANEL = 16  # rows of an adapter's second matrix, whose weights are adjacent
LOW_RANK_TILE = 4  # rows of activations that are multiplied by a loaded panel


def low_rank_scratch_bytes(rank: int) -> int:
    """Return a thread's scratch bytes: the sums of a panel, and a tile of scaled rows."""
    return 4 * (LOW_RANK_PANEL + LOW_RANK_TILE * rank)


# --- roofline measurements: see `localinfer.kernels.roofline` ---

LOAD_BYTES = 64  # bytes per load
OPERAND_RING = 8  # operand sets used in turn: few enough to stay in the L1 cache
OPERAND_BYTES = {"dot": 1, "fma": 4, "pair": 2}


def products_shape(kind: str) -> tuple[int, int, int]:
    """Return rows, tokens and columns of a round of products: the matrix kernels' register tile, or vectors of sums
    that fill the registers."""
    if kind == "dot":
        return target().rows, target().tokens, 32
    columns = LOAD_BYTES // OPERAND_BYTES[kind]
    return (4, 6, columns) if target().accumulators >= 24 else (2, 3, columns)


def round_bytes(kind: str) -> int:
    """Return the bytes of the operands of a round, and of its sums if outer products store them."""
    rows, tokens, columns = products_shape(kind)
    stored = 4 * rows * tokens if kind == "dot" and target().has_outer_products else 0
    return OPERAND_BYTES[kind] * columns * (rows + tokens) + stored

"""Tiles: sixteen groups of weights side by side, one per SIMD lane, so that sums need no shuffles.

A tile holds these groups, transposed, in scratch memory:

    weights     column by column, 16 float32 each: column j of every group
    importance  the weights of the squared errors, in the same layout

Trials of scales follow (see `quant.encoders.searches.scales`), then memory for the use of each format.
"""

from typing import Any

from numba import float32, int64, uint8

from quant.encoders.objective import make_emphasize
from quant.jit.vectors import absolute, extract, f32x16, gather, inline, load, maximum, minimum, select, splat, store
from quant.packing.format_spec import FormatSpec

LANES = 16
WEIGHTS, IMPORTANCE, TRIALS, FREE = 0, 2048, 4096, 12288  # offsets in scratch memory
PADDED = 1 << 17  # offset of the padded last tile of a row

# Beyond the range of every format; its square is far from overflow.
MAX_WEIGHT = 1e9
# The smallest importance, relative to the largest one of a row, so that columns without importance count equally.
MIN_IMPORTANCE = 2.0**-30


@inline
def load_weights(scratch: int, column: int) -> Any:
    """Return a column of the tile's weights."""
    return load(f32x16, scratch + WEIGHTS + 64 * column)


@inline
def load_importance(scratch: int, column: int) -> Any:
    """Return a column of the tile's importance."""
    return load(f32x16, scratch + IMPORTANCE + 64 * column)


@inline
def clamp_weights(v: Any) -> Any:
    """Clamp an f32x16 of weights to +-MAX_WEIGHT."""
    most = splat(f32x16, float32(MAX_WEIGHT))
    return minimum(maximum(v, splat(f32x16, float32(-MAX_WEIGHT))), most)


@inline
def load_normalized_importance(importance: int, first: int, unit: float) -> Any:
    """Return the importance of sixteen columns as f32x16, scaled by `unit`; 1 if the importance is unknown."""
    even = splat(f32x16, float32(1.0))
    if importance != 0:
        even = load(f32x16, importance + 4 * first) * splat(f32x16, unit)
    return maximum(even, splat(f32x16, float32(MIN_IMPORTANCE)))


def make_build_tile(group: int, neighbours: int) -> Any:
    """Make the inlined function build_tile(x, importance, unit, scratch), which builds a tile of 16 groups.

    Each group has `group` columns, and `neighbours` groups share a superblock; `unit` is the reciprocal of the largest
    importance. `quant.encoders.objective` defines the error weights. A group without neighbours and without importance
    minimizes the plain squared error.
    """
    emphasize = make_emphasize(group, neighbours)

    @inline
    def build_tile(x: int, importance: int, unit: float, scratch: int) -> None:
        least = splat(f32x16, float32(MIN_IMPORTANCE))
        for j in range(group):
            store(scratch + WEIGHTS + 64 * j, clamp_weights(gather(f32x16, x + 4 * j, int64(4 * group))))
            even = splat(f32x16, float32(1.0))
            if importance != 0:
                even = maximum(gather(f32x16, importance + 4 * j, int64(4 * group)) * splat(f32x16, unit), least)
            store(scratch + IMPORTANCE + 64 * j, even)
        if importance != 0 or neighbours > 1:
            emphasize(scratch + WEIGHTS, scratch + IMPORTANCE)

    return build_tile


@inline
def signed_absmax(scratch: int, group: int) -> Any:
    """Return the weight of largest magnitude of each group, with its sign."""
    result = load_weights(scratch, 0)
    for j in range(1, group):
        column = load_weights(scratch, j)
        result = select(absolute(column) > absolute(result), column, result)
    return result


@inline
def importance_unit(importance: int, n: int) -> Any:
    """Return the reciprocal of the largest importance of a row."""
    most = float32(0.0)
    if importance != 0:
        for j in range(n):
            most = max(most, load(float32, importance + 4 * j))
    return float32(1.0) / most if most > float32(1e-30) else float32(1.0)


@inline
def pad(source: int, count: int, columns: int, filling: float, target: int) -> None:
    """Copy `count` float32 and fill up to `columns`."""
    for j in range(columns):
        store(target + 4 * j, load(float32, source + 4 * j) if j < count else float32(filling))


@inline
def load_padded(x: int, importance: int, count: int, columns: int, padded: int) -> Any:
    """Return the addresses of `columns` weights and of their importance, which may be 0. Fewer weights than that are
    copied to the address `padded` and filled up with zeros.
    """
    if count < columns:
        pad(x, count, columns, 0.0, padded)
        if importance != 0:
            pad(importance, count, columns, 1.0, padded + 4 * columns)
            return padded, padded + 4 * columns
        return padded, 0
    return x, importance


def make_load_tile(group: int, neighbours: int) -> Any:
    """Make the inlined function load_tile(x, importance, n, start, unit, scratch), which builds the tile of 16 groups
    that begins at column `start` of a row of n: see `make_build_tile`.
    """
    build_tile = make_build_tile(group, neighbours)

    @inline
    def load_tile(x: int, importance: int, n: int, start: int, unit: float, scratch: int) -> None:
        matters = importance + 4 * start if importance != 0 else 0
        weights, matters = load_padded(x + 4 * start, matters, n - start, LANES * group, scratch + PADDED)
        build_tile(weights, matters, unit, scratch)

    return load_tile


def make_encode_by_tiles(group: int, tile_bytes: int, encode_tile: Any) -> Any:
    """Make the inlined function encode of `quant.encoders.encoder` from encode_tile(x, importance, unit, y, scratch).

    encode_tile writes `tile_bytes` bytes for 16 groups. A partial tile at the end of a row is padded with zeros.
    """
    columns = LANES * group

    @inline
    def encode(x: int, importance: int, n: int, y: int, scratch: int) -> None:
        padded, unit = scratch + PADDED, importance_unit(importance, n)
        for start in range(0, n, columns):
            count = min(columns, n - start)
            weights, target = x + 4 * start, y + start // columns * tile_bytes
            matters = importance + 4 * start if importance != 0 else 0
            if count < columns:
                target = padded + 8 * columns
            weights, matters = load_padded(weights, matters, count, columns, padded)
            encode_tile(weights, matters, unit, target, scratch)
            if count < columns:
                for i in range(count * tile_bytes // columns):
                    store(y + start // columns * tile_bytes + i, load(uint8, target + i))

    return encode


def make_encode_superblocks(spec: FormatSpec, encode_groups: Any, store_block: Any) -> Any:
    """Make the inlined function encode of `quant.encoders.encoder` for a format with 256 columns in a block.

    encode_groups(scratch) searches the scales of a tile. It returns d for each group, the same for all groups of a
    block, and the scales as multiples of d. store_block(scratch, d, k, first, block) writes the block of the groups
    from lane `first` on, where d is float32 and k the multiples.
    """
    group, groups, size = spec.group_size, spec.n_groups, spec.superblock_bytes
    build_tile = make_build_tile(group, groups)

    @inline
    def encode_tile(x: int, importance: int, unit: float, y: int, scratch: int) -> None:
        build_tile(x, importance, unit, scratch)
        d, k = encode_groups(scratch)
        for first in range(0, LANES, groups):
            store_block(scratch, extract(d, first), k, first, y + size * (first // groups))

    return make_encode_by_tiles(group, LANES // groups * size, encode_tile)

"""The types of the KV cache: how 32 values of a key or a value become bytes, how these lie, and how they are read.

The numbers are ggml's: f32 is a float a value, f16 a half, q8_0 and q4_0 are a half that scales 32 codes. Nothing is
ever unpacked in memory: `read` gives sixteen values, not yet scaled, in a register.

Keys stand in panels of 16 cells, so that one load brings the same dimension of sixteen keys. For every 32 dimensions:

    scale[16 cells] line[32 or 16][16 cells]      q4_0: a line is dimension i in the low nibbles and i + 16 in the high

Values stand cell by cell, in blocks of 64 cells, behind their scales:

    scale[head_dim / 32][64 cells] row[64 cells]  q4_0: sixteen bytes are 32 values, the first of them in low nibbles

f32 and f16 have no scales, otherwise it is the same.

Where a bias puts the same large numbers into every key, codes are spent on these. So a block of such keys begins with
an anchor, half[head_dim], and its keys are quantized without that: a query's product with the anchor is added to its
scores. The anchor is what the bias comes to in the middle of the block (`localinfer.ops.append`): it follows from
positions alone, so that a key's bits depend on no other key.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from llvmlite import ir
from numba import float32, float64, types, uint8

from localinfer.ops.layout import ANCHORED, BLOCK, CELL_BYTES, PANEL, block_bytes
from quant.jit.emit import constant, emit_load
from quant.jit.vectors import (
    Vector,
    absolute,
    convert,
    emit_convert,
    extract,
    f16x16,
    f32x16,
    i8x16,
    i32x16,
    inline,
    largest,
    load,
    maximum,
    rint,
    select,
    splat,
    store,
    store_half,
    total,
    u8x16,
)

F32 = f32x16.llvm
f64x16 = Vector(types.float64, 16)


@dataclass(frozen=True)
class CellType:
    """How cells of one type are read and written.

    read(builder, address, n)   emits vector number n of those that begin at an address, as floats, to be scaled
    encode(v0, v1, out)         a word: 32 values as a block of ggml's
    """

    name: str
    scaled: bool
    code_bytes: int  # of 32 values, without their scale
    read: Callable[[ir.IRBuilder, ir.Value, int], ir.Value]
    encode: Any
    anchored: bool = False

    @property
    def group_bytes(self) -> int:
        """The bytes of 32 values."""
        return self.code_bytes + 2 * self.scaled

    @property
    def dimensions(self) -> tuple[int, int]:
        """How far apart the dimensions are of two pairs of vectors of a panel, and of the two of a pair."""
        return (1, 16) if self.code_bytes == 16 else (2, 1)

    def head_bytes(self, head_dim: int) -> int:
        """The bytes of a cell."""
        return head_dim // 32 * self.group_bytes

    def block_bytes(self, head_dim: int) -> int:
        """The bytes of a block."""
        return block_bytes(self.name, head_dim, anchored=self.anchored)

    def anchor_bytes(self, head_dim: int) -> int:
        """The bytes of the anchor in front of a block of keys."""
        return 2 * head_dim * self.anchored

    def scale_bytes(self, head_dim: int) -> int:
        """The bytes of the scales in front of a block of values."""
        return head_dim // 32 * 2 * BLOCK if self.scaled else 0


# --- reading ------------------------------------------------------------------------------------------------------


def read_floats(b: ir.IRBuilder, address: ir.Value, n: int) -> ir.Value:
    """f32: sixteen floats."""
    return emit_load(b, F32, b.add(address, ir.Constant(address.type, 64 * n)))


def read_halves(b: ir.IRBuilder, address: ir.Value, n: int) -> ir.Value:
    """f16: sixteen halves."""
    at = b.add(address, ir.Constant(address.type, 32 * n))
    return emit_convert(b, emit_load(b, f16x16.llvm, at), types.float16, types.float32, F32)


def read_bytes(b: ir.IRBuilder, address: ir.Value, n: int) -> ir.Value:
    """q8_0: sixteen signed bytes."""
    at = b.add(address, ir.Constant(address.type, 16 * n))
    return emit_convert(b, emit_load(b, i8x16.llvm, at), types.int8, types.float32, F32)


def read_nibbles(b: ir.IRBuilder, address: ir.Value, n: int) -> ir.Value:
    """q4_0: the low or the high nibbles of sixteen bytes, less 8."""
    at = b.add(address, ir.Constant(address.type, n // 2 * 16))
    pairs = b.zext(emit_load(b, u8x16.llvm, at), i32x16.llvm)
    codes = b.lshr(pairs, constant(i32x16.llvm, 4)) if n % 2 else b.and_(pairs, constant(i32x16.llvm, 15))
    return b.sitofp(b.sub(codes, constant(i32x16.llvm, 8)), F32)


# --- quantizing ---------------------------------------------------------------------------------------------------


@inline
def encode_floats(v0: Any, v1: Any, out: int) -> None:
    """f32: float[32]."""
    store(out, v0)
    store(out + 64, v1)


@inline
def encode_halves(v0: Any, v1: Any, out: int) -> None:
    """f16: half[32]."""
    store(out, convert(f16x16, v0))
    store(out + 32, convert(f16x16, v1))


@inline
def taint(v0: Any, v1: Any) -> Any:
    """1, or NaN if any value is not finite: a scale times this makes nothing of such values."""
    zero = splat(f32x16, float32(0.0))
    return float32(1) + total(v0 * zero + v1 * zero)


@inline
def away_from_zero(x: Any) -> Any:
    """The nearest whole numbers, with halves rounded away from zero, as C's roundf does."""
    magnitude = absolute(x)
    even = rint(magnitude)
    one = select(
        magnitude - even == splat(f32x16, float32(0.5)), splat(f32x16, float32(1.0)), splat(f32x16, float32(0.0))
    )
    rounded = convert(i32x16, even + one)
    return select(x < splat(f32x16, float32(0.0)), splat(i32x16, types.int32(0)) - rounded, rounded)


@inline
def encode_q8_0(v0: Any, v1: Any, out: int) -> None:
    """q8_0: d, qs[32]; the value of largest magnitude becomes 127 or -127."""
    d = largest(maximum(absolute(v0), absolute(v1))) / float32(127)
    inverse = splat(f32x16, float32(1) / d if d > float32(0) else float32(0))
    store_half(out, d * taint(v0, v1))
    store(out + 2, convert(i8x16, away_from_zero(v0 * inverse)))
    store(out + 18, convert(i8x16, away_from_zero(v1 * inverse)))


@inline
def nibbles(v: Any, inverse: float) -> Any:
    """floor(v * inverse + 8.5), at most 15; in double precision, where no product is rounded."""
    x = convert(f64x16, v) * splat(f64x16, inverse) + splat(f64x16, 8.5)
    nearest = rint(x)
    floor = select(nearest > x, nearest - splat(f64x16, 1.0), nearest)
    return convert(u8x16, convert(i32x16, select(floor > splat(f64x16, 15.0), splat(f64x16, 15.0), floor)))


@inline
def encode_q4_0(v0: Any, v1: Any, out: int) -> None:
    """q4_0: d, qs[16]; the first value of largest magnitude becomes code 0, which stands for -8."""
    peak = largest(maximum(absolute(v0), absolute(v1)))
    furthest = float32(0)
    for i in range(31, -1, -1):
        x = extract(v0, i) if i < 16 else extract(v1, i - 16)
        furthest = x if abs(x) == peak else furthest
    d = furthest / float32(-8)
    inverse = float64(float32(1) / d if peak > float32(0) else float32(0))
    store_half(out, d * taint(v0, v1))
    store(out + 2, nibbles(v0, inverse) | (nibbles(v1, inverse) << splat(u8x16, uint8(4))))


CELL_TYPES = {
    each.name: each
    for each in (
        CellType("f32", False, 128, read_floats, encode_floats),
        CellType("f16", False, 64, read_halves, encode_halves),
        CellType("q8_0", True, 32, read_bytes, encode_q8_0),
        CellType("q4_0", True, 16, read_nibbles, encode_q4_0),
    )
}
assert {name: each.group_bytes for name, each in CELL_TYPES.items()} == CELL_BYTES
CELL_TYPES |= {name: replace(CELL_TYPES[kind], anchored=True) for kind, name in ANCHORED.items()}


# --- writing ------------------------------------------------------------------------------------------------------


def key_block_word(kind: CellType, head_dim: int) -> Any:
    """The word key_block(head, cell): where the block of a cell begins among the keys of its head."""
    bytes_of_block = kind.block_bytes(head_dim)

    @inline
    def key_block(head: int, cell: int) -> int:
        return head + cell // BLOCK * bytes_of_block

    return key_block


def put_key_word(kind: CellType, head_dim: int) -> Any:
    """The word put_key(k, head, cell, block): a key, less its anchor, into the panels of its head; `block` is room for
    128 bytes."""
    encode, scales, group_bytes = kind.encode, 32 * kind.scaled, PANEL * kind.group_bytes
    skip = 2 * kind.scaled
    element = max(1, kind.code_bytes // 32)
    lines = kind.code_bytes // element
    bits = {1: types.uint8, 2: types.uint16, 4: types.uint32}[element]
    panel_bytes, anchor_bytes = PANEL * kind.head_bytes(head_dim), kind.anchor_bytes(head_dim)
    key_block = key_block_word(kind, head_dim)

    @inline
    def put_key(key: int, head: int, cell: int, block: int) -> None:
        panel, lane = key_block(head, cell) + anchor_bytes + cell % BLOCK // PANEL * panel_bytes, cell % PANEL
        for group in range(head_dim // 32):
            encode(load(f32x16, key + 128 * group), load(f32x16, key + 128 * group + 64), block)
            place = panel + group_bytes * group
            if scales:
                store(place + 2 * lane, load(types.uint16, block))
            for line in range(lines):
                at = place + scales + element * (PANEL * line + lane)
                store(at, load(bits, block + skip + element * line))

    return put_key


def put_value_word(kind: CellType, head_dim: int) -> Any:
    """The word put_value(v, head, cell, block): a value into the blocks of its head; likewise."""
    encode, scaled, code_bytes, skip = kind.encode, kind.scaled, kind.code_bytes, 2 * kind.scaled
    bytes_of_block, scale_bytes = kind.block_bytes(head_dim), kind.scale_bytes(head_dim)
    row_bytes = head_dim // 32 * code_bytes

    @inline
    def put_value(value: int, head: int, cell: int, block: int) -> None:
        first, within = head + cell // BLOCK * bytes_of_block, cell % BLOCK
        for group in range(head_dim // 32):
            encode(load(f32x16, value + 128 * group), load(f32x16, value + 128 * group + 64), block)
            if scaled:
                store(first + 2 * (BLOCK * group + within), load(types.uint16, block))
            place = first + scale_bytes + row_bytes * within + code_bytes * group
            for i in range(0, code_bytes, 16):
                store(place + i, load(u8x16, block + skip + i))

    return put_value

"""The types of the KV cache: how values are quantized, stored and loaded.

The encodings are ggml's: f32 and f16 are floats; q8_0 and q4_0 have a half-precision scale for 32 codes. Loading never
unpacks to memory: `read` gives 16 unscaled values in a register.

Keys are stored in panels of 16 entries, so that one load has the same dimension of 16 keys. For every 32 dimensions:

    scale[16 entries] line[32 or 16][16 entries]   q4_0: a line has dimension i in low and i + 16 in high nibbles

Values are stored entry by entry in pages of 64 entries, after their scales:

    scale[head_dim / 32][64 entries] row[64 entries]   q4_0: 16 bytes have 32 values, the first 16 in the low nibbles

f32 and f16 have no scales.

A key bias adds the same large numbers to every key, which would waste quantization codes. Pages of such keys start with
an anchor, half[head_dim], and the keys are quantized after subtracting it; the product of query and anchor is added to
the scores. The anchor is the key bias at the middle of the page (`localinfer.kernels.attention.append`). It depends on
positions only, so a key's bits do not depend on other keys.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from llvmlite import ir
from numba import float32, float64, types, uint8

from localinfer.kernels.layout import ANCHORED_TYPES, GROUP_BYTES, PAGE_SIZE, PANEL_KEYS
from quant.jit.emit import constant, emit_load
from quant.jit.emit_numeric import emit_convert
from quant.jit.vectors import (
    Vector,
    absolute,
    convert,
    extract,
    f16x16,
    f32x16,
    i8x16,
    i32x16,
    inline,
    load,
    maximum,
    reduce_max,
    reduce_sum,
    rint,
    select,
    splat,
    store,
    store_half,
    u8x16,
)

F32 = f32x16.llvm
f64x16 = Vector(types.float64, 16)


@dataclass(frozen=True)
class CacheType:
    """A cache type.

    read(builder, address, n) emits the load of the n-th vector of 16 values at an address, as unscaled floats.
    encode(v0, v1, out) is an inlined function that stores 32 values as one ggml block.
    """

    name: str
    scaled: bool
    code_bytes: int  # bytes of 32 values without their scale
    read: Callable[[ir.IRBuilder, ir.Value, int], ir.Value]
    encode: Any
    anchored: bool = False

    @property
    def group_bytes(self) -> int:
        """The bytes of 32 values."""
        return self.code_bytes + 2 * self.scaled

    @property
    def dimensions(self) -> tuple[int, int]:
        """The distance between the dimensions of two pairs of vectors of a panel, and between those of the two vectors
        of a pair."""
        return (1, 16) if self.code_bytes == 16 else (2, 1)

    @property
    def panel_group_bytes(self) -> int:
        """The bytes of 32 dimensions of a panel of keys."""
        return PANEL_KEYS * self.group_bytes

    @property
    def page_group_bytes(self) -> int:
        """The bytes of 32 dimensions of a page, with their part of its anchor."""
        return PAGE_SIZE * self.group_bytes + 64 * self.anchored


# --- reading ------------------------------------------------------------------------------------------------------


def read_floats(b: ir.IRBuilder, address: ir.Value, n: int) -> ir.Value:
    """Load 16 floats of f32."""
    return emit_load(b, F32, b.add(address, ir.Constant(address.type, 64 * n)))


def read_half_floats(b: ir.IRBuilder, address: ir.Value, n: int) -> ir.Value:
    """Load 16 halves of f16."""
    at = b.add(address, ir.Constant(address.type, 32 * n))
    return emit_convert(b, emit_load(b, f16x16.llvm, at), types.float16, types.float32, F32)


def read_bytes(b: ir.IRBuilder, address: ir.Value, n: int) -> ir.Value:
    """Load 16 signed bytes of q8_0."""
    at = b.add(address, ir.Constant(address.type, 16 * n))
    return emit_convert(b, emit_load(b, i8x16.llvm, at), types.int8, types.float32, F32)


def read_nibbles(b: ir.IRBuilder, address: ir.Value, n: int) -> ir.Value:
    """Load the low or high nibbles of 16 bytes of q4_0, minus 8."""
    at = b.add(address, ir.Constant(address.type, n // 2 * 16))
    pairs = b.zext(emit_load(b, u8x16.llvm, at), i32x16.llvm)
    codes = b.lshr(pairs, constant(i32x16.llvm, 4)) if n % 2 else b.and_(pairs, constant(i32x16.llvm, 15))
    return b.sitofp(b.sub(codes, constant(i32x16.llvm, 8)), F32)


# --- quantizing ---------------------------------------------------------------------------------------------------


@inline
def encode_floats(v0: Any, v1: Any, out: int) -> None:
    """Store f32: float[32]."""
    store(out, v0)
    store(out + 64, v1)


@inline
def encode_half_floats(v0: Any, v1: Any, out: int) -> None:
    """Store f16: half[32]."""
    store(out, convert(f16x16, v0))
    store(out + 32, convert(f16x16, v1))


@inline
def propagate_nonfinite(v0: Any, v1: Any) -> Any:
    """Return 1, or NaN if any value is not finite, so that a scale times this is NaN."""
    zero = splat(f32x16, float32(0.0))
    return float32(1) + reduce_sum(v0 * zero + v1 * zero)


@inline
def round_half_away(x: Any) -> Any:
    """Round to the nearest integers, halves away from zero, like C's roundf."""
    magnitude = absolute(x)
    even = rint(magnitude)
    one = select(
        magnitude - even == splat(f32x16, float32(0.5)), splat(f32x16, float32(1.0)), splat(f32x16, float32(0.0))
    )
    rounded = convert(i32x16, even + one)
    return select(x < splat(f32x16, float32(0.0)), splat(i32x16, types.int32(0)) - rounded, rounded)


@inline
def encode_q8_0(v0: Any, v1: Any, out: int) -> None:
    """Store q8_0: d, qs[32]. The value of largest magnitude becomes 127 or -127."""
    d = reduce_max(maximum(absolute(v0), absolute(v1))) / float32(127)
    inverse = splat(f32x16, float32(1) / d if d > float32(0) else float32(0))
    store_half(out, d * propagate_nonfinite(v0, v1))
    store(out + 2, convert(i8x16, round_half_away(v0 * inverse)))
    store(out + 18, convert(i8x16, round_half_away(v1 * inverse)))


@inline
def quantize_nibbles(v: Any, inverse: float) -> Any:
    """Return floor(v * inverse + 8.5), at most 15, in double precision, where the product is exact."""
    x = convert(f64x16, v) * splat(f64x16, inverse) + splat(f64x16, 8.5)
    nearest = rint(x)
    floor = select(nearest > x, nearest - splat(f64x16, 1.0), nearest)
    return convert(u8x16, convert(i32x16, select(floor > splat(f64x16, 15.0), splat(f64x16, 15.0), floor)))


@inline
def encode_q4_0(v0: Any, v1: Any, out: int) -> None:
    """Store q4_0: d, qs[16]. The first value of largest magnitude becomes code 0, which means -8."""
    peak = reduce_max(maximum(absolute(v0), absolute(v1)))
    extreme = float32(0)
    for i in range(31, -1, -1):
        x = extract(v0, i) if i < 16 else extract(v1, i - 16)
        extreme = x if abs(x) == peak else extreme
    d = extreme / float32(-8)
    inverse = float64(float32(1) / d if peak > float32(0) else float32(0))
    store_half(out, d * propagate_nonfinite(v0, v1))
    store(out + 2, quantize_nibbles(v0, inverse) | (quantize_nibbles(v1, inverse) << splat(u8x16, uint8(4))))


CACHE_TYPES = {
    each.name: each
    for each in (
        CacheType("f32", False, 128, read_floats, encode_floats),
        CacheType("f16", False, 64, read_half_floats, encode_half_floats),
        CacheType("q8_0", True, 32, read_bytes, encode_q8_0),
        CacheType("q4_0", True, 16, read_nibbles, encode_q4_0),
    )
}
assert {name: each.group_bytes for name, each in CACHE_TYPES.items()} == GROUP_BYTES
CACHE_TYPES |= {name: replace(CACHE_TYPES[kind], anchored=True) for kind, name in ANCHORED_TYPES.items()}


# --- writing ------------------------------------------------------------------------------------------------------


def make_page_bytes(kind: CacheType) -> Any:
    """Make page_bytes(head_dim): return the bytes of a page of keys or values. `localinfer.kernels.layout.page_bytes`
    returns the same."""
    page_group_bytes = kind.page_group_bytes

    @inline
    def page_bytes(head_dim: int) -> int:
        return head_dim // 32 * page_group_bytes

    return page_bytes


def make_store_key(kind: CacheType) -> Any:
    """Make store_key(key, head_dim, page, entry, block): encode a key and store it in the panels of its page. `block`
    is 128 bytes of scratch."""
    encode, scales, group_bytes = kind.encode, 32 * kind.scaled, kind.panel_group_bytes
    skip, anchor_bytes = 2 * kind.scaled, 2 * kind.anchored
    element = max(1, kind.code_bytes // 32)
    lines = kind.code_bytes // element
    bits = {1: types.uint8, 2: types.uint16, 4: types.uint32}[element]

    @inline
    def store_key(key: int, head_dim: int, page: int, entry: int, block: int) -> None:
        groups, column = head_dim // 32, entry % PANEL_KEYS
        panel = page + anchor_bytes * head_dim + entry % PAGE_SIZE // PANEL_KEYS * (groups * group_bytes)
        for group in range(groups):
            encode(load(f32x16, key + 128 * group), load(f32x16, key + 128 * group + 64), block)
            out = panel + group_bytes * group
            if scales:
                store(out + 2 * column, load(types.uint16, block))
            for line in range(lines):
                at = out + scales + element * (PANEL_KEYS * line + column)
                store(at, load(bits, block + skip + element * line))

    return store_key


def make_store_value(kind: CacheType) -> Any:
    """Make store_value(value, head_dim, page, entry, block): encode a value and store it in its page. `block` is 128
    bytes of scratch."""
    encode, scaled, code_bytes, skip = kind.encode, kind.scaled, kind.code_bytes, 2 * kind.scaled
    scale_bytes = 2 * PAGE_SIZE * kind.scaled

    @inline
    def store_value(value: int, head_dim: int, page: int, entry: int, block: int) -> None:
        groups, within = head_dim // 32, entry % PAGE_SIZE
        row = page + groups * (scale_bytes + code_bytes * within)
        for group in range(groups):
            encode(load(f32x16, value + 128 * group), load(f32x16, value + 128 * group + 64), block)
            if scaled:
                store(page + 2 * (PAGE_SIZE * group + within), load(types.uint16, block))
            for i in range(0, code_bytes, 16):
                store(row + code_bytes * group + i, load(u8x16, block + skip + i))

    return store_value

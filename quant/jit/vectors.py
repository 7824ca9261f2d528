"""Portable vector words for numba kernels: load, splat, lanes, arithmetic, sums.

A kernel says what happens to a vector of a fixed length (`f32x16`, `u8x64`); LLVM cuts it to the registers that the CPU
has. What depends on the instruction set is in `quant.jit.simd`.

Addresses are plain int64 numbers. Nothing here checks bounds: a launcher proves every size before a kernel runs.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import config, extending
from numba.core.datamodel import models
from numba.core.typing import templates

from quant.jit import cpu
from quant.jit.emit import I32, I64, call_llvm, emit_load, emit_splat, suffix
from quant.jit.functions import inline as inline
from quant.jit.functions import intrinsic as intrinsic
from quant.jit.simd import (
    emit_dot4,
    emit_fma,
    emit_lookup16,
    emit_lookup256,
    emit_narrow_half,
    emit_pieces,
    emit_widen_half,
)

# Said before numba makes its compiler, so that it compiles for the CPU that `quant.jit.simd` chooses words for.
vars(config).update(zip(("CPU_NAME", "CPU_FEATURES"), cpu.selected(), strict=True))

# What these make is called inside kernels only, where numba gives it its types.
signature: Any = templates.signature
lower_builtin: Any = extending.lower_builtin

# --- the types ----------------------------------------------------------------------------------------------------

LLVM: dict[Any, Any] = {
    types.boolean: ir.IntType(1),
    types.int8: ir.IntType(8),
    types.uint8: ir.IntType(8),
    types.int16: ir.IntType(16),
    types.uint16: ir.IntType(16),
    types.int32: I32,
    types.uint32: I32,
    types.int64: I64,
    types.uint64: I64,
    types.float16: ir.HalfType(),
    types.float32: ir.FloatType(),
    types.float64: ir.DoubleType(),
}
SIGNED = {types.int8, types.int16, types.int32, types.int64}
FLOATS = {types.float16, types.float32, types.float64}


class Vector(types.Type):
    """`lanes` values of the numba type `element`, held in registers."""

    def __init__(self, element: types.Type, lanes: int) -> None:
        self.element, self.lanes = element, lanes
        super().__init__(name=f"{element}x{lanes}")

    @property
    def llvm(self) -> ir.VectorType:
        """The LLVM type."""
        return ir.VectorType(LLVM[self.element], self.lanes)

    def of(self, element: types.Type) -> "Vector":
        """The same number of lanes of another element."""
        return Vector(element, self.lanes)


@extending.register_model(Vector)
class VectorModel(models.PrimitiveModel):
    """A vector is its LLVM value: no boxing, no memory."""

    def __init__(self, manager: Any, vector: Vector) -> None:
        super().__init__(manager, vector, vector.llvm)


f32x8, f32x16 = Vector(types.float32, 8), Vector(types.float32, 16)
i32x8, i32x16 = Vector(types.int32, 8), Vector(types.int32, 16)
f16x8, f16x16 = Vector(types.float16, 8), Vector(types.float16, 16)
u8x4, u8x8, u8x16, u8x32, u8x64 = (Vector(types.uint8, lanes) for lanes in (4, 8, 16, 32, 64))
i8x16, i8x64 = (Vector(types.int8, lanes) for lanes in (16, 64))
u16x4, u16x8, u16x16, u16x32 = (Vector(types.uint16, lanes) for lanes in (4, 8, 16, 32))
u32x4, u32x8, u32x16 = (Vector(types.uint32, lanes) for lanes in (4, 8, 16))
u64x4, u64x8 = Vector(types.uint64, 4), Vector(types.uint64, 8)

Emit = Callable[[ir.IRBuilder, Sequence[ir.Value]], ir.Value]


def word(result: types.Type, arguments: Sequence[types.Type], emit: Emit) -> tuple[Any, Any]:
    """What an `@intrinsic` returns: its signature, and its code without numba's bookkeeping."""

    def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Sequence[ir.Value]) -> ir.Value:
        value = emit(builder, args)
        return context.get_dummy_value() if result is types.void else value

    return signature(result, *arguments), codegen


def llvm_of(kind: types.Type) -> ir.Type:
    """The LLVM type of a vector or a scalar."""
    return kind.llvm if isinstance(kind, Vector) else LLVM[kind]


def kind_of(reference: Any) -> Any:
    """The type that a kernel names as an argument, e.g. the `f32x16` in `load(f32x16, address)`."""
    return reference.instance_type if hasattr(reference, "instance_type") else reference.dtype


def element_of(kind: types.Type) -> types.Type:
    """The element of a vector; a scalar is its own."""
    return kind.element if isinstance(kind, Vector) else kind


# --- memory -------------------------------------------------------------------------------------------------------


def emit_prefetch(b: ir.IRBuilder, address: ir.Value, level: int) -> ir.Value:
    """Have a cache line fetched that will be read soon, into the cache of that level; any address will do."""
    read, keep, data = I32(0), I32(4 - level), I32(1)
    place = b.inttoptr(address, ir.IntType(8).as_pointer())
    return call_llvm(b, "llvm.prefetch.p0", ir.VoidType(), [place, read, keep, data])


@intrinsic
def load(typingctx: Any, kind: Any, address: Any) -> Any:
    """load(f32x16, address): a vector or a scalar from memory, of any alignment."""
    found = kind_of(kind)
    return word(found, [kind, address], lambda b, args: emit_load(b, llvm_of(found), args[1]))


@intrinsic
def store(typingctx: Any, address: Any, value: Any) -> Any:
    """store(address, value): a vector or a scalar to memory, of any alignment."""

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        return b.store(args[1], b.inttoptr(args[0], args[1].type.as_pointer()), align=1)

    return word(types.void, [address, value], emit)


@intrinsic
def half(typingctx: Any, address: Any) -> Any:
    """The half precision number at an address, as float32."""

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        return emit_widen_half(b, emit_load(b, ir.HalfType(), args[0]), ir.FloatType())

    return word(types.float32, [types.int64], emit)


@intrinsic
def store_half(typingctx: Any, address: Any, value: Any) -> Any:
    """Store a float32 in half precision."""

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        narrow = emit_narrow_half(b, args[1], ir.HalfType())
        return b.store(narrow, b.inttoptr(args[0], ir.HalfType().as_pointer()), align=1)

    return word(types.void, [types.int64, types.float32], emit)


@intrinsic
def prefetch(typingctx: Any, address: Any) -> Any:
    """Have a cache line fetched into the second cache; any address will do."""
    return word(types.void, [types.int64], lambda b, args: emit_prefetch(b, args[0], level=2))


@intrinsic
def prefetch_first(typingctx: Any, address: Any) -> Any:
    """The same, into the first cache."""
    return word(types.void, [types.int64], lambda b, args: emit_prefetch(b, args[0], level=1))


@intrinsic
def gather(typingctx: Any, kind: Any, address: Any, stride: Any) -> Any:
    """gather(u16x8, address, 34): one lane from every stride bytes, with ordinary loads."""
    vector = kind_of(kind)

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        result, place = ir.Constant(vector.llvm, ir.Undefined), args[1]
        for lane in range(vector.lanes):
            result = b.insert_element(result, emit_load(b, vector.llvm.element, place), I32(lane))
            place = b.add(place, args[2])
        return result

    return word(vector, [kind, types.int64, types.int64], emit)


def pieces(kind: Vector, places: Sequence[int], size: int, room: int) -> Any:
    """A word that glues pieces of memory, `size` bytes at each place, where `room` bytes may be read:
    `scales = pieces(f16x8, range(0, 272, 34), 2, 272)`, `scales(address)`."""

    @intrinsic
    def glued(typingctx: Any, address: Any) -> Any:
        def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
            return b.bitcast(emit_pieces(b, args[0], places, size, room), kind.llvm)

        return word(kind, [types.int64], emit)

    return glued


@intrinsic
def splat(typingctx: Any, kind: Any, value: Any) -> Any:
    """splat(f32x16, x): a scalar of the element's type in every lane."""
    vector = kind_of(kind)
    sig = signature(vector, kind, vector.element)

    def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Sequence[ir.Value]) -> ir.Value:
        return emit_splat(builder, vector.llvm, args[1])

    return sig, codegen


def numbers(kind: Vector, values: Sequence[float]) -> Any:
    """A word for a vector of fixed numbers: `ramp = numbers(u8x8, range(8))`, `ramp()`."""
    fixed = ir.Constant(kind.llvm, list(values))

    @intrinsic
    def written(typingctx: Any) -> Any:
        return word(kind, [], lambda *_: fixed)

    return written


# --- lanes --------------------------------------------------------------------------------------------------------


def lanes(pattern: Sequence[int]) -> Any:
    """A word that picks lanes of one vector: `evens = lanes(range(0, 16, 2))`, `evens(v)`."""
    chosen = list(pattern)

    @intrinsic
    def pick(typingctx: Any, v: Any) -> Any:
        mask = ir.Constant(ir.VectorType(I32, len(chosen)), chosen)
        return word(Vector(v.element, len(chosen)), [v], lambda b, args: b.shuffle_vector(args[0], args[0], mask))

    return pick


@intrinsic
def join(typingctx: Any, a: Any, b: Any) -> Any:
    """The lanes of a, then those of b."""
    both = ir.Constant(ir.VectorType(I32, 2 * a.lanes), list(range(2 * a.lanes)))
    return word(Vector(a.element, 2 * a.lanes), [a, b], lambda bld, args: bld.shuffle_vector(args[0], args[1], both))


@intrinsic
def bitcast(typingctx: Any, kind: Any, v: Any) -> Any:
    """The same bits under another type."""
    found = kind_of(kind)
    return word(found, [kind, v], lambda b, args: b.bitcast(args[1], llvm_of(found)))


@intrinsic
def extract(typingctx: Any, v: Any, lane: Any) -> Any:
    """One lane, as a scalar."""
    return word(v.element, [v, types.int64], lambda b, args: b.extract_element(args[0], args[1]))


@intrinsic
def insert(typingctx: Any, v: Any, lane: Any, value: Any) -> Any:
    """v with another value in one lane."""
    arguments = [v, types.int64, v.element]
    return word(v, arguments, lambda b, args: b.insert_element(args[0], args[2], args[1]))


def lookup16(table: Sequence[int]) -> Any:
    """A word that puts table[i] for every byte i of a vector: 16 bytes, and i is below 16."""

    @intrinsic
    def look_up(typingctx: Any, index: Any) -> Any:
        return word(index, [index], lambda b, args: emit_lookup16(b, table, args[0]))

    return look_up


def lookup256(table: Sequence[int]) -> Any:
    """A word that puts table[i] for every byte i of a u8x64: 256 bytes; only where `target().looks_bytes_up`."""

    @intrinsic
    def look_up(typingctx: Any, index: Any) -> Any:
        return word(index, [index], lambda b, args: emit_lookup256(b, table, args[0]))

    return look_up


# --- arithmetic ---------------------------------------------------------------------------------------------------


def emit_convert(b: ir.IRBuilder, value: ir.Value, source: types.Type, wanted: types.Type, kind: ir.Type) -> ir.Value:
    """Between numbers: widening is exact, float to int rounds to the nearest even, narrowing ints truncates."""
    if source in FLOATS and wanted in FLOATS:
        if source is types.float16:
            return emit_widen_half(b, value, kind)
        if wanted is types.float16:
            return emit_narrow_half(b, value, kind)
        return b.fpext(value, kind) if wanted is types.float64 else b.fptrunc(value, kind)
    if source in FLOATS:
        rounded = call_llvm(b, f"llvm.rint.{suffix(value.type)}", value.type, [value])
        return b.fptosi(rounded, kind)
    if wanted in FLOATS:
        return b.sitofp(value, kind) if source in SIGNED else b.uitofp(value, kind)
    if LLVM[source].width == LLVM[wanted].width:
        return value
    if LLVM[source].width > LLVM[wanted].width:
        return b.trunc(value, kind)
    return b.sext(value, kind) if source in SIGNED else b.zext(value, kind)


@intrinsic
def convert(typingctx: Any, kind: Any, value: Any) -> Any:
    """convert(f32x16, v), convert(float32, x): the same numbers in another element type."""
    wanted = kind_of(kind)
    source, goal = element_of(value), element_of(wanted)
    return word(wanted, [kind, value], lambda b, args: emit_convert(b, args[1], source, goal, llvm_of(wanted)))


@intrinsic
def fma(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c, vectors or scalars."""
    return word(a, [a, b, c], lambda bld, args: emit_fma(bld, *args))


def unary(name: str) -> Any:
    """A word for an LLVM intrinsic of one operand."""

    @intrinsic
    def apply(typingctx: Any, v: Any) -> Any:
        kind = llvm_of(v)
        return word(v, [v], lambda b, args: call_llvm(b, f"llvm.{name}.{suffix(kind)}", kind, args))

    return apply


def binary(name: str) -> Any:
    """A word for an LLVM intrinsic of two operands of one type."""

    @intrinsic
    def apply(typingctx: Any, a: Any, b: Any) -> Any:
        kind = llvm_of(a)
        return word(a, [a, b], lambda bld, args: call_llvm(bld, f"llvm.{name}.{suffix(kind)}", kind, args))

    return apply


@intrinsic
def negative(typingctx: Any, v: Any) -> Any:
    """-v, of floats."""
    return word(v, [v], lambda b, args: b.fneg(args[0]))


absolute, sqrt, rint, floor = unary("fabs"), unary("sqrt"), unary("rint"), unary("floor")
count_bits = unary("ctpop")
maximum, minimum, least_int = binary("maxnum"), binary("minnum"), binary("smin")


def operate(python: Any, on_floats: str, on_ints: str, on_unsigned: str = "") -> None:
    """Give vectors of one type a Python operator."""

    @templates.infer_global(python)
    class Typing(templates.AbstractTemplate):  # numba finds it through the decorator
        def generic(self, args: Any, _: Any) -> Any:
            if len(args) == 2 and isinstance(args[0], Vector) and args[0] == args[1]:
                return signature(args[0], *args)
            return None

    @lower_builtin(python, Vector, Vector)
    def lower(context: Any, builder: ir.IRBuilder, sig: Any, args: Sequence[ir.Value]) -> ir.Value:
        element = sig.return_type.element
        name = on_floats if element in FLOATS else on_ints if element in SIGNED or not on_unsigned else on_unsigned
        return getattr(builder, name)(*args)


operate(operator.add, "fadd", "add")
operate(operator.sub, "fsub", "sub")
operate(operator.mul, "fmul", "mul")
operate(operator.truediv, "fdiv", "sdiv")
operate(operator.and_, "and_", "and_")
operate(operator.or_, "or_", "or_")
operate(operator.xor, "xor", "xor")
operate(operator.lshift, "shl", "shl")
operate(operator.rshift, "ashr", "ashr", "lshr")


def compare(python: Any, sign: str) -> None:
    """Give vectors of one type a comparison, whose result is a mask for `select`."""

    @templates.infer_global(python)
    class Typing(templates.AbstractTemplate):  # numba finds it through the decorator
        def generic(self, args: Any, _: Any) -> Any:
            if len(args) == 2 and isinstance(args[0], Vector) and args[0] == args[1]:
                return signature(args[0].of(types.boolean), *args)
            return None

    @lower_builtin(python, Vector, Vector)
    def lower(context: Any, builder: ir.IRBuilder, sig: Any, args: Sequence[ir.Value]) -> ir.Value:
        element = sig.args[0].element
        if element in FLOATS:
            return builder.fcmp_ordered(sign, *args)
        return (builder.icmp_signed if element in SIGNED else builder.icmp_unsigned)(sign, *args)


compare(operator.lt, "<")
compare(operator.le, "<=")
compare(operator.gt, ">")
compare(operator.ge, ">=")
compare(operator.eq, "==")


@intrinsic
def select(typingctx: Any, mask: Any, yes: Any, no: Any) -> Any:
    """Lane by lane: yes where the mask is set, else no."""
    return word(yes, [mask, yes, no], lambda b, args: b.select(*args))


def emit_fold(b: ir.IRBuilder, v: ir.Value, combine: Callable[[ir.Value, ir.Value], ir.Value]) -> ir.Value:
    """Fold halves onto each other until one lane is left: an order of operations that no CPU changes."""
    width = v.type.count
    while width > 1:
        width //= 2
        low = ir.Constant(ir.VectorType(I32, width), list(range(width)))
        high = ir.Constant(ir.VectorType(I32, width), list(range(width, 2 * width)))
        v = combine(b.shuffle_vector(v, v, low), b.shuffle_vector(v, v, high))
    return b.extract_element(v, I32(0))


@intrinsic
def total(typingctx: Any, v: Any) -> Any:
    """The sum of all lanes, always added in the same order."""
    add = "fadd" if v.element in FLOATS else "add"
    return word(v.element, [v], lambda b, args: emit_fold(b, args[0], getattr(b, add)))


def emit_sum(
    b: ir.IRBuilder,
    count: ir.Value,
    start: Sequence[ir.Value],
    step: Callable[[ir.Value, list[ir.Value]], list[ir.Value]],
) -> list[ir.Value]:
    """A loop whose accumulators stay in registers: acc = step(i, acc) for i < count; as it was for count 0."""
    before, loop, done = b.block, b.append_basic_block("sum"), b.append_basic_block("summed")
    b.cbranch(b.icmp_signed(">", count, I64(0)), loop, done)
    b.position_at_end(loop)
    index, acc = b.phi(I64), [b.phi(first.type) for first in start]
    after = step(index, list(acc))
    following = b.add(index, I64(1))
    for phi, first, value in zip([index, *acc], [I64(0), *start], [following, *after], strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(value, b.block)
    last = b.block
    b.cbranch(b.icmp_signed("<", following, count), loop, done)
    b.position_at_end(done)
    results = [b.phi(first.type) for first in start]
    for result, first, value in zip(results, start, after, strict=True):
        result.add_incoming(first, before)
        result.add_incoming(value, last)
    return results


@intrinsic
def largest(typingctx: Any, v: Any) -> Any:
    """The largest lane of a float vector."""

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        return emit_fold(b, args[0], lambda x, y: call_llvm(b, f"llvm.maxnum.{suffix(x.type)}", x.type, [x, y]))

    return word(v.element, [v], emit)


@intrinsic
def lanes_of_bits(typingctx: Any, bits: Any) -> Any:
    """A mask with a lane for every bit of an integer, the lowest first."""
    count = LLVM[bits].width
    mask = Vector(types.boolean, count)
    return word(mask, [bits], lambda b, args: b.bitcast(args[0], mask.llvm))


@intrinsic
def bits_of_lanes(typingctx: Any, mask: Any) -> Any:
    """An integer with a bit for every lane of a mask, the first in the lowest."""
    bits: Any = {8: types.uint8, 16: types.uint16, 32: types.uint32, 64: types.uint64}[mask.lanes]
    return word(bits, [mask], lambda b, args: b.bitcast(args[0], LLVM[bits]))


# --- the integer dot product ---------------------------------------------------------------------------------------


def dot4(bits: int) -> Any:
    """The word dot4(acc, codes, x) for codes below 2**bits."""

    @intrinsic
    def apply(typingctx: Any, acc: Any, codes: Any, x: Any) -> Any:
        return word(acc, [acc, codes, x], lambda b, args: emit_dot4(b, args[0], args[1], args[2], bits))

    return apply

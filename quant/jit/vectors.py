"""Portable vector operations for numba kernels: load, splat, shuffle, arithmetic, reductions.

A kernel operates on vectors of fixed length (`f32x16`, `u8x64`), which LLVM splits into the CPU's registers.
`quant.jit.simd` has the code that depends on the instruction set.

Addresses are plain int64 numbers. Nothing checks bounds: the caller verifies every size before a kernel runs.
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
from quant.jit.emit import I32, call_intrinsic, emit_load, emit_splat, intrinsic_suffix
from quant.jit.emit_numeric import FLOAT_TYPES, LLVM_TYPES, SIGNED_TYPES, emit_convert, emit_prefetch, emit_reduce
from quant.jit.functions import inline as inline
from quant.jit.functions import intrinsic as intrinsic
from quant.jit.simd import (
    emit_dot4,
    emit_f16_to_f32,
    emit_f32_to_f16,
    emit_fma,
    emit_gather_pieces,
    emit_lookup16,
    emit_lookup256,
    emit_mask_from_bits,
)

# This must be set before numba creates its compiler, so that it compiles for the CPU for which `quant.jit.simd` emits
# code.
vars(config).update(zip(("CPU_NAME", "CPU_FEATURES"), cpu.selected_cpu(), strict=True))

# Functions made by these are called only inside kernels, where numba infers the types.
signature: Any = templates.signature
lower_builtin: Any = extending.lower_builtin

# --- the types ----------------------------------------------------------------------------------------------------


class Vector(types.Type):
    """A numba type: `lanes` values of the type `element`, held in registers."""

    def __init__(self, element: types.Type, lanes: int) -> None:
        self.element, self.lanes = element, lanes
        super().__init__(name=f"{element}x{lanes}")

    @property
    def llvm(self) -> ir.VectorType:
        """The LLVM type."""
        return ir.VectorType(LLVM_TYPES[self.element], self.lanes)

    def with_element(self, element: types.Type) -> "Vector":
        """Return the type with the same number of lanes and another element type."""
        return Vector(element, self.lanes)


@extending.register_model(Vector)
class VectorModel(models.PrimitiveModel):
    """The data model of a vector: its LLVM value, without boxing or memory."""

    def __init__(self, manager: Any, vector: Vector) -> None:
        super().__init__(manager, vector, vector.llvm)


f32x8, f32x16 = Vector(types.float32, 8), Vector(types.float32, 16)
i32x8, i32x16 = Vector(types.int32, 8), Vector(types.int32, 16)
f16x8, f16x16 = Vector(types.float16, 8), Vector(types.float16, 16)
u8x4, u8x8, u8x16, u8x32, u8x64 = (Vector(types.uint8, lanes) for lanes in (4, 8, 16, 32, 64))
i8x16, i8x64 = (Vector(types.int8, lanes) for lanes in (16, 64))
u16x4, u16x8, u16x16, u16x32 = (Vector(types.uint16, lanes) for lanes in (4, 8, 16, 32))
u32x4, u32x8, u32x16 = (Vector(types.uint32, lanes) for lanes in (4, 8, 16))
u64x2, u64x4, u64x8 = (Vector(types.uint64, lanes) for lanes in (2, 4, 8))

Emit = Callable[[ir.IRBuilder, Sequence[ir.Value]], ir.Value]


def lowering(result: types.Type, arguments: Sequence[types.Type], emit: Emit) -> tuple[Any, Any]:
    """Return an intrinsic's signature and code generator, as `@intrinsic` expects them. `emit` needs no
    numba context.
    """

    def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Sequence[ir.Value]) -> ir.Value:
        value = emit(builder, args)
        return context.get_dummy_value() if result is types.void else value

    return signature(result, *arguments), codegen


def llvm_type(kind: types.Type) -> ir.Type:
    """Return the LLVM type of a vector or scalar type."""
    return kind.llvm if isinstance(kind, Vector) else LLVM_TYPES[kind]


def type_argument(reference: Any) -> Any:
    """Return the type that a kernel passes as an argument, e.g. the `f32x16` in `load(f32x16, address)`."""
    return reference.instance_type if hasattr(reference, "instance_type") else reference.dtype


def element_type(kind: types.Type) -> types.Type:
    """Return the element type of a vector, or the scalar type itself."""
    return kind.element if isinstance(kind, Vector) else kind


# --- memory -------------------------------------------------------------------------------------------------------


@intrinsic
def load(typingctx: Any, kind: Any, address: Any) -> Any:
    """load(f32x16, address): load a vector or a scalar from memory, with any alignment."""
    found = type_argument(kind)
    return lowering(found, [kind, address], lambda b, args: emit_load(b, llvm_type(found), args[1]))


@intrinsic
def store(typingctx: Any, address: Any, value: Any) -> Any:
    """store(address, value): store a vector or a scalar to memory, with any alignment."""

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        return b.store(args[1], b.inttoptr(args[0], args[1].type.as_pointer()), align=1)

    return lowering(types.void, [address, value], emit)


@intrinsic
def load_half(typingctx: Any, address: Any) -> Any:
    """Load a half precision number as float32."""

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        return emit_f16_to_f32(b, emit_load(b, ir.HalfType(), args[0]), ir.FloatType())

    return lowering(types.float32, [types.int64], emit)


@intrinsic
def store_half(typingctx: Any, address: Any, value: Any) -> Any:
    """Store a float32 in half precision."""

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        narrow = emit_f32_to_f16(b, args[1], ir.HalfType())
        return b.store(narrow, b.inttoptr(args[0], ir.HalfType().as_pointer()), align=1)

    return lowering(types.void, [types.int64, types.float32], emit)


@intrinsic
def prefetch_l2(typingctx: Any, address: Any) -> Any:
    """Prefetch a cache line into the second-level cache. Any address is allowed."""
    return lowering(types.void, [types.int64], lambda b, args: emit_prefetch(b, args[0], level=2))


@intrinsic
def prefetch_l1(typingctx: Any, address: Any) -> Any:
    """Prefetch a cache line into the first-level cache. Any address is allowed."""
    return lowering(types.void, [types.int64], lambda b, args: emit_prefetch(b, args[0], level=1))


@intrinsic
def gather(typingctx: Any, kind: Any, address: Any, stride: Any) -> Any:
    """gather(u16x8, address, 34): load lanes that lie `stride` bytes apart, with ordinary loads."""
    vector = type_argument(kind)

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        result, pointer = ir.Constant(vector.llvm, ir.Undefined), args[1]
        for lane in range(vector.lanes):
            result = b.insert_element(result, emit_load(b, vector.llvm.element, pointer), I32(lane))
            pointer = b.add(pointer, args[2])
        return result

    return lowering(vector, [kind, types.int64, types.int64], emit)


def make_gather(kind: Vector, offsets: Sequence[int], size: int, readable_bytes: int) -> Any:
    """Return an inlined function that loads pieces of memory into one vector: `size` bytes at each of `offsets`.

    `readable_bytes` from the address on may be read. Example: `scales = make_gather(f16x8, range(0, 272, 34), 2, 272)`,
    then `scales(address)`.
    """

    @intrinsic
    def gathered(typingctx: Any, address: Any) -> Any:
        def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
            return b.bitcast(emit_gather_pieces(b, args[0], offsets, size, readable_bytes), kind.llvm)

        return lowering(kind, [types.int64], emit)

    return gathered


@intrinsic
def splat(typingctx: Any, kind: Any, value: Any) -> Any:
    """splat(f32x16, x): copy a scalar of the element type to every lane."""
    vector = type_argument(kind)
    sig = signature(vector, kind, vector.element)

    def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Sequence[ir.Value]) -> ir.Value:
        return emit_splat(builder, vector.llvm, args[1])

    return sig, codegen


def make_constant(kind: Vector, values: Sequence[float]) -> Any:
    """Return an inlined function for a constant vector: `ramp = make_constant(u8x8, range(8))`, then `ramp()`."""
    fixed = ir.Constant(kind.llvm, list(values))

    @intrinsic
    def constant_vector(typingctx: Any) -> Any:
        return lowering(kind, [], lambda *_: fixed)

    return constant_vector


# --- lanes --------------------------------------------------------------------------------------------------------


def make_shuffle(pattern: Sequence[int]) -> Any:
    """Return an inlined function that selects lanes of a vector: `evens = make_shuffle(range(0, 16, 2))`, then
    `evens(v)`.
    """
    chosen = list(pattern)

    @intrinsic
    def pick(typingctx: Any, v: Any) -> Any:
        mask = ir.Constant(ir.VectorType(I32, len(chosen)), chosen)
        return lowering(Vector(v.element, len(chosen)), [v], lambda b, args: b.shuffle_vector(args[0], args[0], mask))

    return pick


@intrinsic
def concat(typingctx: Any, a: Any, b: Any) -> Any:
    """Concatenate the lanes of a and b."""
    both = ir.Constant(ir.VectorType(I32, 2 * a.lanes), list(range(2 * a.lanes)))
    joined = Vector(a.element, 2 * a.lanes)
    return lowering(joined, [a, b], lambda bld, args: bld.shuffle_vector(args[0], args[1], both))


@intrinsic
def bitcast(typingctx: Any, kind: Any, v: Any) -> Any:
    """Reinterpret the bits as another type."""
    found = type_argument(kind)
    return lowering(found, [kind, v], lambda b, args: b.bitcast(args[1], llvm_type(found)))


@intrinsic
def extract(typingctx: Any, v: Any, lane: Any) -> Any:
    """Return one lane as a scalar."""
    return lowering(v.element, [v, types.int64], lambda b, args: b.extract_element(args[0], args[1]))


@intrinsic
def insert(typingctx: Any, v: Any, lane: Any, value: Any) -> Any:
    """Return v with one lane replaced."""
    arguments = [v, types.int64, v.element]
    return lowering(v, arguments, lambda b, args: b.insert_element(args[0], args[2], args[1]))


def make_lookup16(table: Sequence[int]) -> Any:
    """Return an inlined function that maps every byte i of a vector, below 16, to table[i]. The table has 16 bytes."""

    @intrinsic
    def look_up(typingctx: Any, index: Any) -> Any:
        return lowering(index, [index], lambda b, args: emit_lookup16(b, table, args[0]))

    return look_up


def make_lookup256(table: Sequence[int]) -> Any:
    """Return an inlined function that maps every byte i of a u8x64 to table[i]. Requires
    `target().has_byte_permute`.
    """

    @intrinsic
    def look_up(typingctx: Any, index: Any) -> Any:
        return lowering(index, [index], lambda b, args: emit_lookup256(b, table, args[0]))

    return look_up


# --- arithmetic ---------------------------------------------------------------------------------------------------


@intrinsic
def convert(typingctx: Any, kind: Any, value: Any) -> Any:
    """convert(f32x16, v) or convert(float32, x): convert the numbers to another element type."""
    wanted = type_argument(kind)
    source, goal = element_type(value), element_type(wanted)
    return lowering(wanted, [kind, value], lambda b, args: emit_convert(b, args[1], source, goal, llvm_type(wanted)))


@intrinsic
def fma(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a * b + c for vectors or scalars."""
    return lowering(a, [a, b, c], lambda bld, args: emit_fma(bld, *args))


def make_unary(name: str) -> Any:
    """Return an inlined function for an LLVM intrinsic of one operand."""

    @intrinsic
    def apply(typingctx: Any, v: Any) -> Any:
        kind = llvm_type(v)
        return lowering(v, [v], lambda b, args: call_intrinsic(b, f"llvm.{name}.{intrinsic_suffix(kind)}", kind, args))

    return apply


def make_binary(name: str) -> Any:
    """Return an inlined function for an LLVM intrinsic of two operands of one type."""

    @intrinsic
    def apply(typingctx: Any, a: Any, b: Any) -> Any:
        kind = llvm_type(a)
        return lowering(
            a, [a, b], lambda bld, args: call_intrinsic(bld, f"llvm.{name}.{intrinsic_suffix(kind)}", kind, args)
        )

    return apply


@intrinsic
def negative(typingctx: Any, v: Any) -> Any:
    """Return -v for floats."""
    return lowering(v, [v], lambda b, args: b.fneg(args[0]))


absolute, sqrt, rint, floor = make_unary("fabs"), make_unary("sqrt"), make_unary("rint"), make_unary("floor")
popcount = make_unary("ctpop")
maximum, minimum, min_int = make_binary("maxnum"), make_binary("minnum"), make_binary("smin")


def register_operator(python: Any, on_floats: str, on_ints: str, on_unsigned: str = "") -> None:
    """Define a Python operator for two vectors of the same type."""

    @templates.infer_global(python)
    class Typing(templates.AbstractTemplate):  # numba finds it through the decorator
        def generic(self, args: Any, _: Any) -> Any:
            if len(args) == 2 and isinstance(args[0], Vector) and args[0] == args[1]:
                return signature(args[0], *args)
            return None

    @lower_builtin(python, Vector, Vector)
    def lower(context: Any, builder: ir.IRBuilder, sig: Any, args: Sequence[ir.Value]) -> ir.Value:
        element = sig.return_type.element
        on_integers = on_ints if element in SIGNED_TYPES or not on_unsigned else on_unsigned
        name = on_floats if element in FLOAT_TYPES else on_integers
        return getattr(builder, name)(*args)


register_operator(operator.add, "fadd", "add")
register_operator(operator.sub, "fsub", "sub")
register_operator(operator.mul, "fmul", "mul")
register_operator(operator.truediv, "fdiv", "sdiv")
register_operator(operator.and_, "and_", "and_")
register_operator(operator.or_, "or_", "or_")
register_operator(operator.xor, "xor", "xor")
register_operator(operator.lshift, "shl", "shl")
register_operator(operator.rshift, "ashr", "ashr", "lshr")


def register_comparison(python: Any, sign: str) -> None:
    """Define a comparison for two vectors of the same type. The result is a mask for `select`."""

    @templates.infer_global(python)
    class Typing(templates.AbstractTemplate):  # numba finds it through the decorator
        def generic(self, args: Any, _: Any) -> Any:
            if len(args) == 2 and isinstance(args[0], Vector) and args[0] == args[1]:
                return signature(args[0].with_element(types.boolean), *args)
            return None

    @lower_builtin(python, Vector, Vector)
    def lower(context: Any, builder: ir.IRBuilder, sig: Any, args: Sequence[ir.Value]) -> ir.Value:
        element = sig.args[0].element
        if element in FLOAT_TYPES:
            return builder.fcmp_ordered(sign, *args)
        return (builder.icmp_signed if element in SIGNED_TYPES else builder.icmp_unsigned)(sign, *args)


register_comparison(operator.lt, "<")
register_comparison(operator.le, "<=")
register_comparison(operator.gt, ">")
register_comparison(operator.ge, ">=")
register_comparison(operator.eq, "==")


@intrinsic
def select(typingctx: Any, mask: Any, yes: Any, no: Any) -> Any:
    """Return `yes` in lanes where the mask is set, else `no`."""
    return lowering(yes, [mask, yes, no], lambda b, args: b.select(*args))


@intrinsic
def reduce_sum(typingctx: Any, v: Any) -> Any:
    """Return the sum of all lanes, always added in the same order."""
    add = "fadd" if v.element in FLOAT_TYPES else "add"
    return lowering(v.element, [v], lambda b, args: emit_reduce(b, args[0], getattr(b, add)))


@intrinsic
def reduce_max(typingctx: Any, v: Any) -> Any:
    """Return the largest lane of a float vector."""

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        return emit_reduce(
            b, args[0], lambda x, y: call_intrinsic(b, f"llvm.maxnum.{intrinsic_suffix(x.type)}", x.type, [x, y])
        )

    return lowering(v.element, [v], emit)


@intrinsic
def mask_from_bits(typingctx: Any, bits: Any) -> Any:
    """Return a mask with one lane for each bit of an integer, lowest bit first."""
    count = LLVM_TYPES[bits].width
    mask = Vector(types.boolean, count)
    return lowering(mask, [bits], lambda b, args: emit_mask_from_bits(b, args[0]))


@intrinsic
def bits_from_mask(typingctx: Any, mask: Any) -> Any:
    """Return an integer with one bit for each lane of a mask, first lane lowest."""
    bits: Any = {8: types.uint8, 16: types.uint16, 32: types.uint32, 64: types.uint64}[mask.lanes]
    return lowering(bits, [mask], lambda b, args: b.bitcast(args[0], LLVM_TYPES[bits]))


# --- the integer dot product ---------------------------------------------------------------------------------------


def make_dot4(bits: int) -> Any:
    """Return the inlined function dot4(acc, codes, x) for codes below 2**bits: see `quant.jit.simd.emit_dot4`."""

    @intrinsic
    def apply(typingctx: Any, acc: Any, codes: Any, x: Any) -> Any:
        return lowering(acc, [acc, codes, x], lambda b, args: emit_dot4(b, args[0], args[1], args[2], bits))

    return apply

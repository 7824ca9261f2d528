"""Helpers to emit LLVM IR, independent of the instruction set. `quant.jit.simd` has the code for each
instruction set.
"""

from collections.abc import Sequence

from llvmlite import ir

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))


class BFloatType(ir.Type):
    """The LLVM type bfloat: the upper half of a float32. llvmlite does not define it."""

    def _to_string(self) -> str:
        return "bfloat"


def call_intrinsic(builder: ir.IRBuilder, name: str, result: ir.Type, args: Sequence[ir.Value]) -> ir.Value:
    """Call the LLVM intrinsic with this full name."""
    kind = ir.FunctionType(result, [arg.type for arg in args])
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    return builder.call(function, args)


def intrinsic_suffix(kind: ir.Type) -> str:
    """Return a type's spelling in the names of overloaded LLVM intrinsics, such as "v16f32"."""
    if isinstance(kind, ir.VectorType):
        return f"v{kind.count}{intrinsic_suffix(kind.element)}"
    return {"half": "f16", "float": "f32", "double": "f64"}.get(str(kind), str(kind))


def constant(kind: ir.VectorType, value: float) -> ir.Constant:
    """Return a vector constant with the same number in every lane."""
    return ir.Constant(kind, [value] * kind.count)


def byte_vector(sums: ir.VectorType) -> ir.VectorType:
    """Return the vector type with four bytes for each lane of `sums`."""
    return ir.VectorType(I8, 4 * sums.count)


def emit_load(b: ir.IRBuilder, kind: ir.Type, address: ir.Value) -> ir.Value:
    """Load from an address of any alignment."""
    return b.load(b.inttoptr(address, kind.as_pointer()), align=1)


def emit_splat(b: ir.IRBuilder, kind: ir.VectorType, value: ir.Value) -> ir.Value:
    """Copy a scalar to every lane."""
    first = b.insert_element(ir.Constant(kind, ir.Undefined), value, I32(0))
    return b.shuffle_vector(first, first, constant(ir.VectorType(I32, kind.count), 0))


def slice_lanes(b: ir.IRBuilder, v: ir.Value, start: int, count: int) -> ir.Value:
    """Return `count` consecutive lanes from lane `start` on."""
    return b.shuffle_vector(v, v, ir.Constant(ir.VectorType(I32, count), list(range(start, start + count))))


def concat_lanes(b: ir.IRBuilder, low: ir.Value, high: ir.Value) -> ir.Value:
    """Concatenate two vectors."""
    both = ir.Constant(ir.VectorType(I32, 2 * low.type.count), list(range(2 * low.type.count)))
    return b.shuffle_vector(low, high, both)


def split_halves(b: ir.IRBuilder, v: ir.Value) -> list[ir.Value]:
    """Return the lower and the upper half of the lanes."""
    half = v.type.count // 2
    return [slice_lanes(b, v, 0, half), slice_lanes(b, v, half, half)]


def concat_all(b: ir.IRBuilder, vectors: Sequence[ir.Value]) -> ir.Value:
    """Concatenate vectors of equal length. Their number is a power of two."""
    while len(vectors) > 1:
        vectors = [concat_lanes(b, low, high) for low, high in zip(vectors[::2], vectors[1::2], strict=True)]
    return vectors[0]


def broadcast_lane(b: ir.IRBuilder, v: ir.Value, lane: int) -> ir.Value:
    """Copy one lane to all lanes."""
    return b.shuffle_vector(v, v, constant(ir.VectorType(I32, v.type.count), lane))


def every_second_lane(b: ir.IRBuilder, v: ir.Value, first: int) -> ir.Value:
    """Return the even lanes (`first` = 0) or the odd lanes (`first` = 1)."""
    chosen = list(range(first, v.type.count, 2))
    return b.shuffle_vector(v, v, ir.Constant(ir.VectorType(I32, len(chosen)), chosen))

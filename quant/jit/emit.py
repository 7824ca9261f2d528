"""LLVM IR in a few words: what every emitter needs, on any CPU. Instruction sets are `quant.jit.simd`."""

from collections.abc import Sequence

from llvmlite import ir

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))


class BFloatType(ir.Type):
    """bfloat, the upper half of a float, which llvmlite has no word for."""

    def _to_string(self) -> str:
        return "bfloat"


def call_llvm(builder: ir.IRBuilder, name: str, result: ir.Type, args: Sequence[ir.Value]) -> ir.Value:
    """Call the LLVM intrinsic of that full name."""
    kind = ir.FunctionType(result, [arg.type for arg in args])
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    return builder.call(function, args)


def suffix(kind: ir.Type) -> str:
    """How LLVM's overloaded intrinsics spell a type: v16f32."""
    if isinstance(kind, ir.VectorType):
        return f"v{kind.count}{suffix(kind.element)}"
    return {"half": "f16", "float": "f32", "double": "f64"}.get(str(kind), str(kind))


def constant(kind: ir.VectorType, value: float) -> ir.Constant:
    """The same number in every lane."""
    return ir.Constant(kind, [value] * kind.count)


def bytes_of(sums: ir.VectorType) -> ir.VectorType:
    """Four bytes for every sum."""
    return ir.VectorType(I8, 4 * sums.count)


def emit_load(b: ir.IRBuilder, kind: ir.Type, address: ir.Value) -> ir.Value:
    """Load from an address of any alignment."""
    return b.load(b.inttoptr(address, kind.as_pointer()), align=1)


def emit_splat(b: ir.IRBuilder, kind: ir.VectorType, value: ir.Value) -> ir.Value:
    """A scalar in every lane."""
    first = b.insert_element(ir.Constant(kind, ir.Undefined), value, I32(0))
    return b.shuffle_vector(first, first, constant(ir.VectorType(I32, kind.count), 0))


def cut(b: ir.IRBuilder, v: ir.Value, start: int, count: int) -> ir.Value:
    """Some neighbouring lanes."""
    return b.shuffle_vector(v, v, ir.Constant(ir.VectorType(I32, count), list(range(start, start + count))))


def glue(b: ir.IRBuilder, low: ir.Value, high: ir.Value) -> ir.Value:
    """Two vectors as one."""
    both = ir.Constant(ir.VectorType(I32, 2 * low.type.count), list(range(2 * low.type.count)))
    return b.shuffle_vector(low, high, both)


def halves(b: ir.IRBuilder, v: ir.Value) -> list[ir.Value]:
    """The lower and the upper lanes."""
    half = v.type.count // 2
    return [cut(b, v, 0, half), cut(b, v, half, half)]


def joined(b: ir.IRBuilder, parts: Sequence[ir.Value]) -> ir.Value:
    """All lanes one after the other; as many parts as a power of two."""
    while len(parts) > 1:
        parts = [glue(b, low, high) for low, high in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def lane_everywhere(b: ir.IRBuilder, v: ir.Value, lane: int) -> ir.Value:
    """One lane in place of all."""
    return b.shuffle_vector(v, v, constant(ir.VectorType(I32, v.type.count), lane))


def every_second(b: ir.IRBuilder, v: ir.Value, first: int) -> ir.Value:
    """The even lanes (first 0) or the odd ones (first 1)."""
    chosen = list(range(first, v.type.count, 2))
    return b.shuffle_vector(v, v, ir.Constant(ir.VectorType(I32, len(chosen)), chosen))

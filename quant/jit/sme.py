"""SME2, the matrix instructions of 64-bit ARM: sums of products of bytes for 32 tokens and 32 rows at a time.

The instruction sumopa multiplies four columns of 16 tokens by the same columns of 16 rows and adds the 256 sums to a
tile of the register ZA. ZA has four such tiles. SME instructions need the CPU's streaming mode, in which vectors have
another length and the NEON instructions do not exist: a function is in streaming mode as a whole or not at all.
`emit_outer_sums` emits such a function and its call. It multiplies many records, because entering the mode takes time.

The length of vectors is part of the layout of the sums. `quant.jit.cpu` selects SME only if it is VECTOR_BYTES, as on
Apple M4 and later. SME2 adds instructions that load, move and store four vectors at a time.

LLVM compiles the functions with SME whatever it knows about the CPU. They call no support routines, which a JIT
compiler would have to provide: ZA belongs to them alone, because no kernel is called by code that uses ZA. The
operating system saves and restores the mode, the vectors and ZA of each thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from llvmlite import ir

from quant.jit.emit import I1, I8, I32, I64, call_intrinsic

VECTOR_BYTES = 64
VECTOR_LANES = VECTOR_BYTES // 4  # 32-bit sums in a vector; also tokens, and rows, in a tile
SIDE = 2 * VECTOR_LANES  # tokens, and rows, of the four tiles
TILE_BYTES = VECTOR_BYTES * VECTOR_LANES  # int32 [token][row]
SUMS_BYTES = 4 * TILE_BYTES  # of a record
ALL_TILES, ALL_LANES = 0xFF, 31  # operands of the instructions zero and ptrue


class ScalableVector(ir.Type):
    """An LLVM vector type whose length is a multiple of that of 16 bytes. llvmlite does not define it."""

    def __init__(self, element: ir.Type, count: int) -> None:
        self.element, self.count = element, count

    def _to_string(self) -> str:
        return f"<vscale x {self.count} x {self.element}>"


class CounterType(ir.Type):
    """The LLVM type of a predicate register that holds the number of active lanes of several vectors."""

    def _to_string(self) -> str:
        return 'target("aarch64.svcount")'


BYTES, SUMS = ScalableVector(I8, 16), ScalableVector(I32, 4)

STREAMING, ENTERS_STREAMING = '"aarch64_pstate_sm_enabled"', '"aarch64_pstate_sm_body"'
USES_ZA, HAS_SME2 = '"aarch64_inout_za"', '"target-features"="+sme2"'


class StreamingAttributes(ir.values.FunctionAttributes):
    """The attributes of a function that uses SME. llvmlite does not know them."""

    _known = ir.values.FunctionAttributes._known | {STREAMING, ENTERS_STREAMING, USES_ZA, HAS_SME2}


@dataclass(frozen=True)
class OuterSums:
    """Sums of products of signed activations and unsigned codes, for each record of 32 tokens and 32 rows.

      sum[token][row] = start[token] + the sum of x[step][token][column] * codes[step][row][column]

    A step has four columns, and the number of steps is even. The sums are those of tile after tile: those of the first
    half of the tokens and the first half of the rows, of the same tokens and the second half of the rows, and so on.
    Records of codes, activations and sums are `strides` bytes apart, in this order. `start` is the start value of all
    tokens, or None if each token has its own, in the record of the activations.
    """

    steps: int
    strides: tuple[int, int, int]
    start: int | None


def emit_outer_sums(
    b: ir.IRBuilder, codes: ir.Value, x: ir.Value, starts: ir.Value, records: ir.Value, out: ir.Value, sums: OuterSums
) -> None:
    """Store the sums of `records` records, at least one, at `out`. All arguments but the last are addresses or numbers.

    The outer one of two functions only changes the mode, so that the inner one may keep vectors on the stack: outside
    of streaming mode, addressing these takes instructions that the CPU may lack.
    """
    name = f"outer_sums_{sums.steps}_{'_'.join(map(str, sums.strides))}_{sums.start}"
    if name not in b.module.globals:
        inner = add_function(b.module, f"{name}_streaming", [STREAMING, USES_ZA])
        emit_records(ir.IRBuilder(inner.append_basic_block()), inner.args, sums)
        outer = add_function(b.module, name, [ENTERS_STREAMING, USES_ZA])
        inside = ir.IRBuilder(outer.append_basic_block())
        call_intrinsic(inside, "llvm.aarch64.sme.za.enable", ir.VoidType(), [])
        inside.call(inner, outer.args)
        call_intrinsic(inside, "llvm.aarch64.sme.za.disable", ir.VoidType(), [])
        inside.ret_void()
    b.call(b.module.globals[name], [codes, x, starts, records, out])


def add_function(module: ir.Module, name: str, attributes: Sequence[str]) -> ir.Function:
    """Return a new function of five integers, which several modules of a kernel may define alike."""
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * 5), name)
    function.linkage = "linkonce_odr"
    function.attributes = StreamingAttributes(["noinline", "nounwind", HAS_SME2, *attributes])
    return function


class Masks(NamedTuple):
    """Predicates that select all lanes: of a vector of bytes, of a vector of sums, and of four vectors of each."""

    of_bytes: ir.Value
    of_sums: ir.Value
    of_four_bytes: ir.Value
    of_four_sums: ir.Value


def emit_masks(b: ir.IRBuilder) -> Masks:
    """Return the predicates that select all lanes."""
    everything, counter = [I32(ALL_LANES)], CounterType()
    return Masks(
        call_intrinsic(b, "llvm.aarch64.sve.ptrue.nxv16i1", ScalableVector(I1, 16), everything),
        call_intrinsic(b, "llvm.aarch64.sve.ptrue.nxv4i1", ScalableVector(I1, 4), everything),
        call_intrinsic(b, "llvm.aarch64.sve.ptrue.c8", counter, []),
        call_intrinsic(b, "llvm.aarch64.sve.ptrue.c32", counter, []),
    )


class Addresses(NamedTuple):
    """The addresses of a record's codes, activations, start values and sums."""

    codes: ir.Value
    x: ir.Value
    starts: ir.Value
    out: ir.Value


def emit_records(b: ir.IRBuilder, args: Sequence[ir.Value], sums: OuterSums) -> None:
    """Emit the loop over records."""
    codes, x, starts, records, out = args
    before, loop, done = b.block, b.append_basic_block("record"), b.append_basic_block("done")
    masks = emit_masks(b)
    b.branch(loop)
    b.position_at_end(loop)
    index = b.phi(I64)
    of_codes, of_x, of_sums = (b.mul(index, I64(stride)) for stride in sums.strides)
    record = Addresses(b.add(codes, of_codes), b.add(x, of_x), b.add(starts, of_x), b.add(out, of_sums))
    emit_products(b, masks, record, sums)
    emit_stores(b, masks, record.out)
    following = b.add(index, I64(1))
    index.add_incoming(I64(0), before)
    index.add_incoming(following, loop)
    b.cbranch(b.icmp_signed("<", following, records), loop, done)
    b.position_at_end(done)
    b.ret_void()


def emit_products(b: ir.IRBuilder, masks: Masks, record: Addresses, sums: OuterSums) -> None:
    """Compute the sums of a record in ZA: tile 2 * i + j has those of half i of the tokens and half j of the rows."""
    tiles = [(2 * i + j, i, j) for i in (0, 1) for j in (0, 1)]
    call_intrinsic(b, "llvm.aarch64.sme.zero", ir.VoidType(), [I32(ALL_TILES)])
    if sums.start != 0:
        first = emit_starts(b, record.starts, sums.start)
        for tile, i, _ in tiles:
            operands = [I32(tile), masks.of_sums, masks.of_sums, first[i]]
            call_intrinsic(b, "llvm.aarch64.sme.addva.nxv4i32", ir.VoidType(), operands)
    for step in range(0, sums.steps, 2):
        rows, tokens = (emit_four_loads(b, masks, address, 2 * step) for address in (record.codes, record.x))
        for half in (0, 2):  # the two vectors of each step
            for tile, i, j in tiles:
                operands = [I32(tile), masks.of_bytes, masks.of_bytes, tokens[half + i], rows[half + j]]
                call_intrinsic(b, "llvm.aarch64.sme.sumopa.wide.nxv16i8", ir.VoidType(), operands)


def emit_starts(b: ir.IRBuilder, starts: ir.Value, start: int | None) -> list[ir.Value]:
    """Return the start values of each half of the tokens."""
    if start is not None:
        return [call_intrinsic(b, "llvm.aarch64.sve.dup.x.nxv4i32", SUMS, [I32(start)])] * 2
    addresses = starts, b.add(starts, I64(VECTOR_BYTES))
    return [b.load(b.inttoptr(address, SUMS.as_pointer()), align=4) for address in addresses]


def emit_four_loads(b: ir.IRBuilder, masks: Masks, address: ir.Value, first: int) -> list[ir.Value]:
    """Load four vectors of bytes, from vector `first` on of those that begin at an address."""
    pointer, four = b.inttoptr(b.add(address, I64(VECTOR_BYTES * first)), BYTES.as_pointer()), [BYTES] * 4
    operands = [masks.of_four_bytes, pointer]
    loaded = call_intrinsic(b, "llvm.aarch64.sve.ld1.pn.x4.nxv16i8", ir.LiteralStructType(four), operands)
    return [b.extract_value(loaded, number) for number in range(4)]


def emit_stores(b: ir.IRBuilder, masks: Masks, out: ir.Value) -> None:
    """Store all tiles, four rows of a tile at a time.

    They are copied to vectors first. According to published measurements, Apple M4 stores vectors faster than ZA.
    """
    four = ir.LiteralStructType([SUMS] * 4)
    for tile in range(4):
        for row in range(0, VECTOR_LANES, 4):
            read = call_intrinsic(b, "llvm.aarch64.sme.read.hor.vg4.nxv4i32", four, [I32(tile), I32(row)])
            address = b.add(out, I64(TILE_BYTES * tile + VECTOR_BYTES * row))
            vectors = [b.extract_value(read, number) for number in range(4)]
            operands = [*vectors, masks.of_four_sums, b.inttoptr(address, SUMS.as_pointer())]
            call_intrinsic(b, "llvm.aarch64.sve.st1.pn.x4.nxv4i32", ir.VoidType(), operands)

"""Products of F32, F16 and BF16 weights with float32 or bfloat16 activations.

  matvec     few tokens: rows are read straight from the file; bound by memory bandwidth
  matmul     many tokens: rows are copied into panels in the activations' type, and a register tile multiplies several
             rows by several tokens

The kernels have the interface of `quant.matmul.rows` and `quant.matmul.panels`, but activations are not quantized:
[token][n_in] of `activation_type`, "f32" or "bf16". Sums are float32.

A row is multiplied in chunks of columns, each by all tokens, so that a tile's tokens stay in the first-level cache. A
chunk has sixteen sums, and a column belongs to the same sum whatever the tile. A product is therefore the same to the
last bit whether a token is alone or in a batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

from llvmlite import ir
from numba import float32, int64, types

from quant.formats.floats import ELEMENT_BYTES, EMIT_LOAD16, F32X16, LOAD, STORE
from quant.jit.cpu import target
from quant.jit.emit import I64, constant, emit_load
from quant.jit.emit_numeric import emit_accumulation_loop, emit_prefetch, emit_reduce
from quant.jit.simd import BF16X32, emit_bf16_dot2, emit_fma
from quant.jit.threads import chunk_range
from quant.jit.vectors import Vector, fma, inline, intrinsic, load, lowering, prefetch_l2, store
from quant.matmul.layout import PANEL_CACHE_BYTES
from quant.matmul.load_access import load_access
from quant.matmul.output_init import init_output
from quant.matmul.reductions import emit_reduce_four, emit_shuffle
from quant.matmul.work_division import make_divided_kernel

KernelBody = Callable[..., None]
Prefetches = Sequence[tuple[int, int]]  # multiples of a row access's prefetch distance, each with the cache level

STEP_BYTES = 64  # of activations that one instruction multiplies
SUMS_BYTES = 128  # scratch bytes for a tile's sums; panels begin at a cache line
COLUMN_CHUNK = 1024  # six tokens of these in float32 fill 24 KB of a 32 KB first-level cache


@dataclass(frozen=True)
class FloatOperands:
    """The types of weights and activations that are multiplied."""

    weight_type: str
    activation_type: str

    @property
    def columns(self) -> int:
        """The number of columns in a step."""
        return STEP_BYTES // ELEMENT_BYTES[self.activation_type]

    def weights(self, b: ir.IRBuilder, address: ir.Value) -> ir.Value:
        """Load the weights of a step, in the activations' type."""
        return (
            emit_load(b, BF16X32, address)
            if self.activation_type == "bf16"
            else EMIT_LOAD16[self.weight_type](b, address)
        )

    def activations(self, b: ir.IRBuilder, address: ir.Value) -> ir.Value:
        """Load the activations of a step."""
        return emit_load(b, BF16X32 if self.activation_type == "bf16" else F32X16, address)

    def add(self, b: ir.IRBuilder, weights: ir.Value, x: ir.Value, sums: ir.Value) -> ir.Value:
        """Add the products of a step to sixteen sums."""
        return (emit_bf16_dot2 if self.activation_type == "bf16" else emit_fma)(b, weights, x, sums)


def emit_store_sums(b: ir.IRBuilder, sums: Sequence[ir.Value], out: ir.Value) -> None:
    """Store the sum of each vector's lanes, as consecutive floats. Reducing four vectors at a time is faster and gives
    the same bits.
    """
    whole_fours = len(sums) // 4 * 4
    totals = [
        emit_shuffle(b, emit_reduce_four(b, sums[at : at + 4], b.fadd), [0, 4, 8, 12])
        for at in range(0, whole_fours, 4)
    ]
    totals += [emit_reduce(b, each, b.fadd) for each in sums[whole_fours:]]
    offsets = [*range(0, whole_fours, 4), *range(whole_fours, len(sums))]
    for at, value in zip(offsets, totals, strict=True):
        b.store(value, b.inttoptr(b.add(out, I64(4 * at)), value.type.as_pointer()), align=4)


def make_dot_tile(operands: FloatOperands, rows: int, tokens: int, prefetches: Prefetches) -> Any:
    """Return the inlined function dots(row, row_bytes, x, x_bytes, steps, out, prefetch): products over whole steps,
    float32 out[tokens][rows].

    Kernels that read a file's rows in sequence prefetch at multiples of `prefetch` bytes ahead.
    """
    step_bytes = operands.columns * ELEMENT_BYTES[operands.weight_type]
    pairs = [(i, j) for j in range(tokens) for i in range(rows)]

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        row, row_bytes, x, x_bytes, steps, out, prefetch = args
        rows_at = [b.add(row, b.mul(row_bytes, I64(i))) for i in range(rows)]
        tokens_at = [b.add(x, b.mul(x_bytes, I64(j))) for j in range(tokens)]

        def step(k: ir.Value, acc: list[ir.Value]) -> list[ir.Value]:
            at, x_at = b.mul(k, I64(step_bytes)), b.mul(k, I64(STEP_BYTES))
            for row, (multiple, level) in product(rows_at, prefetches):
                emit_prefetch(b, b.add(row, b.add(at, b.mul(prefetch, I64(multiple)))), level)
            weights = [operands.weights(b, b.add(row, at)) for row in rows_at]
            values = [operands.activations(b, b.add(token, x_at)) for token in tokens_at]
            return [operands.add(b, weights[i], values[j], s) for (i, j), s in zip(pairs, acc, strict=True)]

        sums = emit_accumulation_loop(b, steps, [constant(F32X16, 0.0)] * len(pairs), step)
        emit_store_sums(b, sums, out)
        return out

    @intrinsic
    def dots(
        typingctx: Any, row: Any, row_bytes: Any, x: Any, x_bytes: Any, steps: Any, out: Any, prefetch: Any
    ) -> Any:
        return lowering(types.void, [types.int64] * 7, emit)

    return dots


class Rows(NamedTuple):
    """Rows in memory: the address of the first one, and the bytes between two."""

    address: int
    stride: int


class Output(NamedTuple):
    """The output of a tile: the address of the first result, the bytes between rows and between tokens, and whether the
    products are added to what is there."""

    address: int
    row_stride: int
    token_stride: int
    add: int


def make_multiply(operands: FloatOperands, rows: int, tokens: int, prefetches: Prefetches = ()) -> Any:
    """Return the inlined function multiply(valid, w, x, n, y, sums, prefetch=0).

    It computes the products of the first `valid` rows of the `Rows` w and the tokens of the `Rows` x over n columns,
    and stores them to, or adds them to, the `Output` y. `sums` is scratch memory. `prefetch` is the distance in bytes
    of prefetching, if there are `prefetches`.
    """
    dots, columns = make_dot_tile(operands, rows, tokens, prefetches), operands.columns
    neighbours = Vector(types.float32, rows)
    weight, weight_bytes = LOAD[operands.weight_type], ELEMENT_BYTES[operands.weight_type]
    value, value_bytes = LOAD[operands.activation_type], ELEMENT_BYTES[operands.activation_type]

    @inline
    def add_remainder(result: float, row: int, x: int, n: int) -> Any:
        """Add the products of the columns after the last whole step."""
        for i in range(n // columns * columns, n):
            result = fma(weight(row + weight_bytes * i), value(x + value_bytes * i), result)
        return result

    @inline
    def multiply(valid: int, w: Rows, x: Rows, n: int, y: Output, sums: int, prefetch: int = 0) -> None:
        dots(w.address, w.stride, x.address, x.stride, n // columns, sums, prefetch)
        if valid == rows and y.row_stride == 4 and n % columns == 0:
            for j in range(tokens):
                address, result = y.address + j * y.token_stride, load(neighbours, sums + 4 * rows * j)
                store(address, result + load(neighbours, address) if y.add else result)
            return
        for j in range(tokens):
            for i in range(valid):
                address = y.address + j * y.token_stride + y.row_stride * i
                total = load(float32, sums + 4 * (rows * j + i))
                result = add_remainder(total, w.address + i * w.stride, x.address + j * x.stride, n)
                store(address, result + load(float32, address) if y.add else result)

    return multiply


def make_read_streams(operands: FloatOperands, streams: int, widest: int = 1) -> Any:
    """Return the inlined function read_streams(args, first, end, count, prefetch, sums).

    It multiplies the rows first .. end - 1 by `count` tokens, in `streams` ranges of rows that are read side by side:
    `widest` tokens at a time, a power of two, then fewer. Each weight is loaded and converted once for these. It
    returns the first of the remaining rows, fewer than `streams`.
    """
    widths = [width for width in (4, 2, 1) if width <= widest]
    multiply_tokens = make_multiply_widths(operands, streams, widths)
    size, x_size = ELEMENT_BYTES[operands.weight_type], ELEMENT_BYTES[operands.activation_type]

    @inline
    def read_streams(args: Any, first: int, end: int, count: int, prefetch: int, sums: int) -> Any:
        n_rows = (end - first) // streams
        for row in range(first, first + n_rows):
            for column in range(0, args.n_in, COLUMN_CHUNK):
                w = Rows(args.w + row * args.row_bytes + size * column, n_rows * args.row_bytes)
                x = Rows(args.x + x_size * column, x_size * args.n_in)
                y = Output(args.y + 4 * row, 4 * n_rows, args.y_stride, args.base or column)
                multiply_tokens(count, w, x, min(COLUMN_CHUNK, args.n_in - column), y, sums, prefetch)
        return first + streams * n_rows

    return read_streams


def make_multiply_widths(operands: FloatOperands, rows: int, widths: Sequence[int]) -> Any:
    """Return the inlined function multiply_tokens(count, w, x, n, y, sums, prefetch), as `make_multiply` with as many
    rows, for any number of tokens: as many of them at a time as the first of the `widths` that is not larger."""
    multiply, width = make_multiply(operands, rows, widths[0], ((1, 2),)), widths[0]

    @inline
    def multiply_whole(count: int, w: Rows, x: Rows, n: int, y: Output, sums: int, prefetch: int) -> None:
        for token in range(0, count - width + 1, width):
            here = Output(y.address + y.token_stride * token, y.row_stride, y.token_stride, y.add)
            multiply(rows, w, Rows(x.address + x.stride * token, x.stride), n, here, sums, prefetch)

    if width == 1:
        return multiply_whole
    multiply_rest = make_multiply_widths(operands, rows, widths[1:])

    @inline
    def multiply_tokens(count: int, w: Rows, x: Rows, n: int, y: Output, sums: int, prefetch: int) -> None:
        multiply_whole(count, w, x, n, y, sums, prefetch)
        whole = count // width * width
        rest = Output(y.address + y.token_stride * whole, y.row_stride, y.token_stride, y.add)
        multiply_rest(count - whole, w, Rows(x.address + x.stride * whole, x.stride), n, rest, sums, prefetch)

    return multiply_tokens


def make_read_rows(operands: FloatOperands, prefetches: Prefetches) -> Any:
    """Return the inlined function read_rows(args, first, end, count, prefetch, sums), which multiplies the rows
    first .. end - 1 by `count` tokens, row by row and token by token.
    """
    multiply = make_multiply(operands, 1, 1, prefetches)
    size, x_size = ELEMENT_BYTES[operands.weight_type], ELEMENT_BYTES[operands.activation_type]

    @inline
    def read_rows(args: Any, first: int, end: int, count: int, prefetch: int, sums: int) -> None:
        for row in range(first, end):
            for token in range(count):
                for column in range(0, args.n_in, COLUMN_CHUNK):
                    w = Rows(args.w + row * args.row_bytes + size * column, args.row_bytes)
                    x = Rows(args.x + x_size * (args.n_in * token + column), x_size * args.n_in)
                    y = Output(args.y + token * args.y_stride + 4 * row, 4, args.y_stride, args.base or column)
                    multiply(1, w, x, min(COLUMN_CHUNK, args.n_in - column), y, sums, prefetch)

    return read_rows


def matvec(format_module: str, activation_type: str) -> KernelBody:
    """Return the kernel y[token][row] = base[token][row] + w[row] . x[token] for few tokens. `base` may be 0.

    The order in which it reads the rows is tuned for the CPU: see `quant.matmul.row_access`. It has one, four and eight
    streams, and reads neighbours row by row.
    """
    operands = FloatOperands(format_module, activation_type)
    read_rows, prefetch_rows = make_read_rows(operands, ()), make_read_rows(operands, ((3, 2), (1, 1)))
    read_four, read_eight = (make_read_streams(operands, streams) for streams in (4, 8))
    read_tokens = make_read_streams(operands, *((4, 4) if target().accumulators >= 24 else (2, 2)))

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        first, end = chunk_range(args.n_out, 8, chunk_index, n_chunks)
        count, access = load(int64, args.tokens), load_access(args.access)
        init_output(args, first, end, 0, count)
        if count > 1:
            first = read_tokens(args, first, end, count, access.prefetch, scratch)
        elif access.streams == 4 and not access.neighbours:
            first = read_four(args, first, end, count, access.prefetch, scratch)
        elif access.streams == 8:
            first = read_eight(args, first, end, count, access.prefetch, scratch)
        if access.prefetch:
            prefetch_rows(args, first, end, count, access.prefetch, scratch)
        else:
            read_rows(args, first, end, count, 0, scratch)

    return body


def make_copy_row(operands: FloatOperands) -> Any:
    """Return the inlined function copy(row, n, destination): copy n weights, converted to the activations' type."""
    load_one, size = LOAD[operands.weight_type], ELEMENT_BYTES[operands.weight_type]
    store_one, x_size = STORE[operands.activation_type], ELEMENT_BYTES[operands.activation_type]
    columns = operands.columns

    def emit(b: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        weights = operands.weights(b, args[0])
        return b.store(weights, b.inttoptr(args[1], weights.type.as_pointer()), align=1)

    @intrinsic
    def copy_step(typingctx: Any, row: Any, destination: Any) -> Any:
        return lowering(types.void, [types.int64] * 2, emit)

    @inline
    def copy(row: int, n: int, destination: int) -> None:
        whole = n // columns * columns
        for i in range(0, whole, columns):
            copy_step(row + size * i, destination + x_size * i)
        for i in range(whole, n):
            store_one(destination + x_size * i, load_one(row + size * i))

    return copy


def make_prefetch_tile(tokens: int) -> Any:
    """Return the inlined function prefetch_tile(x, x_bytes, first, end): prefetch the bytes first .. end of each token
    of a tile.
    """

    @inline
    def prefetch_tile(x: int, x_bytes: int, first: int, end: int) -> None:
        for token in range(tokens):
            for at in range(first, end, 64):
                prefetch_l2(x + x_bytes * token + at)

    return prefetch_tile


def matmul(format_module: str, activation_type: str) -> KernelBody:
    """Return the kernel y[token][row] = base[token][row] + w[row] . x[token] for many tokens. `base` may be 0.

    A chunk of columns of as many rows as the core's cache holds is copied once, and then multiplied by all tokens, one
    tile at a time.
    """
    rows, width = (4, 6) if target().accumulators >= 24 else (2, 3)
    copy = make_copy_row(FloatOperands(format_module, activation_type))
    copied = FloatOperands(activation_type, activation_type)
    whole, narrow = make_multiply(copied, rows, width), make_multiply(copied, rows, 1)
    size, x_size = ELEMENT_BYTES[format_module], ELEMENT_BYTES[activation_type]
    prefetch_tile = make_prefetch_tile(width)

    @inline
    def multiply_tile(count: int, valid: int, w: Rows, x: Rows, n: int, y: Output, sums: int) -> None:
        """Multiply `valid` rows by a tile's tokens, of which there are `count`, or more."""
        if count >= width:
            whole(valid, w, x, n, y, sums)
        else:
            for j in range(count):
                token = Output(y.address + j * y.token_stride, 4, y.token_stride, y.add)
                narrow(valid, w, Rows(x.address + x.stride * j, x.stride), n, token, sums)

    @inline
    def multiply_rows(args: Any, first: int, end: int, first_tile: int, end_tile: int, scratch: int) -> None:
        """Multiply the rows first .. end - 1 by the tokens of the tiles first_tile .. end_tile - 1."""
        n_in, y_stride = args.n_in, args.y_stride
        first_token, end_token = width * first_tile, min(width * end_tile, load(int64, args.tokens))
        x_bytes, step = x_size * n_in, x_size * min(n_in, COLUMN_CHUNK) + 64
        panel, block = scratch + SUMS_BYTES, PANEL_CACHE_BYTES // (step * rows) * rows
        init_output(args, first, end, first_token, end_token)
        for start in range(first, end, block):
            until = min(start + block, end)
            for column in range(0, n_in, COLUMN_CHUNK):
                if load(int64, args.stop):
                    return
                n, add = min(COLUMN_CHUNK, n_in - column), args.base or column
                for row in range(start, until + (start - until) % rows):
                    copy(args.w + min(row, until - 1) * args.row_bytes + size * column, n, panel + (row - start) * step)
                for token in range(first_token, end_token, width):
                    x = Rows(args.x + x_bytes * token + x_size * column, x_bytes)
                    next_tile, fetch_bytes = x.address + width * x_bytes, x_size * n * rows // (until - start)
                    for row in range(start, until, rows):
                        fetched = (row - start) // rows * fetch_bytes
                        prefetch_tile(next_tile, x_bytes, fetched, fetched + fetch_bytes)
                        w = Rows(panel + (row - start) * step, step)
                        y = Output(args.y + token * y_stride + 4 * row, 4, y_stride, add)
                        multiply_tile(end_token - token, min(rows, until - row), w, x, n, y, scratch)

    return make_divided_kernel(multiply_rows, rows, width)

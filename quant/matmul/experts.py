"""Products with several matrices of one shape: the experts of a mixture, or attention heads.

Consecutive rows of activations that are multiplied by the same matrix form a run. If runs consist of tiles, all threads
share each matrix as they share a single one, so the lengths of runs do not matter. If runs have few rows, memory
bandwidth dominates: a chunk is then a contiguous range of all rows of all selected matrices, so that each thread reads
long contiguous ranges.

  runs      int64: the number of runs, then for each its matrix, its first row, and its number of rows
  matrices  int64: the address of each matrix

A run's results begin at y + y_row * its first row + y_matrix * its matrix, and are y_stride bytes apart.
"""

from typing import Any

from numba import int64

from quant.formats.floats import ELEMENT_BYTES
from quant.jit.threads import chunk_range
from quant.jit.vectors import inline, load
from quant.matmul import float_matmul, panels, rows
from quant.matmul.activations import count_superblocks
from quant.matmul.layout import GROUPS_PER_SUPERBLOCK, RUN_WORDS, flat_bytes, record_bytes
from quant.matmul.product_arguments import ProductArguments
from quant.packing.format_spec import KernelBody

RUN_HEADER_BYTES, RUN_BYTES = 8, 8 * RUN_WORDS
MIN_CHUNK_ROWS = 8  # the least number of rows in a chunk


def make_activation_row_bytes(activation_type: str, superblock_bytes: int) -> Any:
    """Return the inlined function x_row_bytes(n): the size of a row of n activations."""
    size = ELEMENT_BYTES.get(activation_type, 0)

    @inline
    def x_row_bytes(n: int) -> Any:
        return size * n if size else count_superblocks(n) * superblock_bytes

    return x_row_bytes


@inline
def run_product(args: Any, run: int, x_row_bytes: int, row: int, n_rows: int) -> Any:
    """Return the arguments of the product of a run with the rows row .. row + n_rows - 1 of its matrix."""
    record = args.runs + RUN_HEADER_BYTES + RUN_BYTES * run
    matrix, first = load(int64, record), load(int64, record + 8)
    return ProductArguments(
        tokens=record + 16,
        x=args.x + x_row_bytes * first,
        w=load(int64, args.matrices + 8 * matrix) + args.row_bytes * row,
        row_bytes=args.row_bytes,
        n_in=args.n_in,
        n_out=n_rows,
        base=args.bias + 4 * (args.n_out * matrix + row) if args.bias else 0,
        base_stride=0,
        y=args.y + args.y_row * first + args.y_matrix * matrix + 4 * row,
        y_stride=args.y_stride,
        token_parts=args.token_parts,
        access=args.access,
        stop=args.stop,
    )


def make_run_kernel(product: KernelBody, activation_type: str, superblock_bytes: int) -> KernelBody:
    """Return the kernel that computes `product` for each run, with all threads sharing each matrix."""
    multiply, x_row_bytes = inline(product), make_activation_row_bytes(activation_type, superblock_bytes)

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        for run in range(load(int64, args.runs)):
            product_args = run_product(args, run, x_row_bytes(args.n_in), 0, args.n_out)
            multiply(product_args, chunk_index, n_chunks, scratch)

    return body


def make_split_run_kernel(product: KernelBody, activation_type: str, superblock_bytes: int) -> KernelBody:
    """Return the same kernel with other chunks: a chunk is a contiguous range of rows of one or more matrices."""
    multiply, x_row_bytes = inline(product), make_activation_row_bytes(activation_type, superblock_bytes)

    def body(args: Any, chunk_index: int, n_chunks: int, scratch: int) -> None:
        row_chunks = (args.n_out + MIN_CHUNK_ROWS - 1) // MIN_CHUNK_ROWS
        begin, end = chunk_range(load(int64, args.runs) * row_chunks, 1, chunk_index, n_chunks)
        for run in range(begin // row_chunks, (end + row_chunks - 1) // row_chunks):
            row = max(0, begin - run * row_chunks) * MIN_CHUNK_ROWS
            until = min(args.n_out, (end - run * row_chunks) * MIN_CHUNK_ROWS)
            multiply(run_product(args, run, x_row_bytes(args.n_in), row, until - row), 0, 1, scratch)

    return body


def matvec(format_module: str, activation_type: str, passes: int) -> KernelBody:
    """Return the kernel y[row] = bias[matrix] + w[matrix] . x[row] for rows in the flat layout. `bias` may be 0."""
    if activation_type == "quantized":
        product = rows.matvec(format_module, passes)
    else:
        product = float_matmul.matvec(format_module, activation_type)
    return make_split_run_kernel(product, activation_type, flat_bytes(256, passes))


def matmul(format_module: str, activation_type: str, passes: int) -> KernelBody:
    """Return the same kernel for tiles of rows. A run begins with a tile."""
    if activation_type == "quantized":
        product = panels.matmul(format_module, passes)
    else:
        product = float_matmul.matmul(format_module, activation_type)
    return make_run_kernel(product, activation_type, GROUPS_PER_SUPERBLOCK * record_bytes(1, passes))

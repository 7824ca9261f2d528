"""Checks of the sizes of an op before it is recorded: kernels check no bounds, and a projector file is untrusted."""

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import UnsupportedError
from localinfer.gguf.reader import GGUF, Tensor
from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.properties.attention import AttentionHeads
from localinfer.multimodal.encoder_graph.row_order import Indices

TYPE_KEY = "clip.projector_type"  # errors name it where no tensor or other key is the cause

CLASS = "v.class_embd"  # rows beside those of the patches


def check_positions(f: GGUF, count: int, rows: int) -> None:
    """Raise LocalInferError unless as many rows have a position as there are: those of classes may have none."""
    if count != rows:
        raise f.error(f"tensor {CLASS}" if CLASS in f.tensors else TYPE_KEY, f"{rows} rows have {count} positions")


def check_product(f: GGUF, x: Buffer, weight: Tensor, add_to: Buffer | None, out: Buffer | None) -> None:
    """Raise LocalInferError if the product would read or write beyond the memory of x, `add_to` or `out`."""
    n_out, n_in = weight.shape
    if n_in != x.n:
        raise f.error(f"tensor {weight.name}", f"has {n_in} columns; its input has {x.n}")
    y, count = out or add_to, x.rows.capacity
    if y and (n_out > y.n or (add_to and n_out < y.n) or count > y.rows.capacity):
        what = f"makes {count} rows of {n_out} values; there is memory for {y.rows.capacity} rows of {y.n}"
        raise f.error(f"tensor {weight.name}", what)


def check_columns(f: GGUF, x: Buffer, y: Buffer, first: int) -> None:
    """Raise LocalInferError unless y has room for the rows of x from column `first` on."""
    if first + x.n > y.n or x.rows.capacity > y.rows.capacity:
        room = f"{y.rows.capacity} rows, columns {first} to {y.n}"
        raise f.error(TYPE_KEY, f"{x.rows.capacity} rows of {x.n} values do not fit into {room}")


def check_gathered(f: GGUF, y: Buffer, rows: int, n: int) -> None:
    """Raise LocalInferError unless y has this number of values and has room for the rows."""
    if n != y.n or rows > y.rows.capacity:
        raise f.error(TYPE_KEY, f"{rows} rows of {n} values do not fit into {y.rows.capacity} rows of {y.n}")


def check_row_numbers(f: GGUF, x: Buffer, numbers: Indices) -> None:
    """Raise LocalInferError for numbers of rows that x does not have."""
    if numbers.size and not 0 <= numbers.min() <= numbers.max() < x.rows.capacity:
        raise f.error(TYPE_KEY, f"an op reads rows {numbers.min()} to {numbers.max()} of {x.rows.capacity}")


def check_taps(f: GGUF, numbers: Indices, count: int) -> None:
    """Raise LocalInferError for numbers of rows that are neither among `count` rows nor -1, a row of zeros."""
    if numbers.size and not -1 <= numbers.min() <= numbers.max() < count:
        raise f.error(TYPE_KEY, f"a convolution reads rows {numbers.min()} to {numbers.max()} of {count}")


def check_length(f: GGUF, x: Buffer, n: int, count: int) -> None:
    """Raise LocalInferError unless x has `count` rows of n values."""
    if (x.n, x.rows.capacity) != (n, count):
        raise f.error(TYPE_KEY, f"attention needs {count} rows of {n} values, not {x.rows.capacity} of {x.n}")


def check_head_size(f: GGUF, heads: AttentionHeads, multiple: int) -> None:
    """Raise UnsupportedError for heads of another size, and of keys and values of different sizes."""
    if heads.key % multiple or heads.key != heads.value or heads.count != heads.count_kv:
        what = f"heads of {heads.key} values are not supported; {multiple} must divide them"
        raise f.error(TYPE_KEY, what, UnsupportedError)


def check_spans(f: GGUF, oldest: NDArray[np.integer], newest: NDArray[np.integer], count: int) -> None:
    """Raise LocalInferError unless the rows exist that each row attends to, from its oldest to its newest."""
    if not len(oldest) or (oldest < 0).any() or (newest < oldest).any() or (newest >= count).any():
        what = f"{oldest.min()} to {newest.max()}" if len(oldest) else "none"
        raise f.error(TYPE_KEY, f"attention reads the rows {what} of {count}")

"""Matrices whose numbers of rows or columns are not multiples of what kernels read at a time. The columns are padded
with zeros."""

from localinfer.gguf.reader import Tensor
from localinfer.graph.ops.buffers import Buffer
from localinfer.multimodal.encoder_graph.encoder_builder import EncoderBuilder
from quant import FORMATS


def matrix_of(g: EncoderBuilder, name: str) -> Tensor:
    """Return a matrix of the file, whose shape is checked where it is used."""
    tensor = g.f.tensors.get(f"{name}.weight")
    if tensor is None:
        raise g.f.error(f"tensor {name}.weight", "is missing")
    return tensor


def n_rows_of(g: EncoderBuilder, name: str) -> int:
    """Return the number of rows of a matrix."""
    return matrix_of(g, name).shape[0]


def padded_length(g: EncoderBuilder, name: str, n: int) -> int:
    """Return the number of columns that the kernels read of a matrix with `n` columns."""
    known = FORMATS.get(matrix_of(g, name).type)
    multiple = 16 if known is None or known.activation_type(g.graph.passes) == "f32" else 32
    return -(-n // multiple) * multiple


def padded_product(g: EncoderBuilder, x: Buffer, name: str, rows: int, n: int) -> Buffer:
    """Return weight . x (+ bias), for a matrix with this number of rows, with columns of zeros up to `n`."""
    if rows == n:
        return g.matmul(x, name, n)
    y = g.graph.buffer(n, x.rows)  # its memory is zeros, and only such products have this number of columns
    weight = g.tensors.tensor(f"{name}.weight", rows, x.n)
    return g.product(x, weight, bias=g.tensors.bias(name, rows), out=y)


def product_of_padded(
    g: EncoderBuilder, x: Buffer, name: str, n_in: int, n_out: int, *, add_to: Buffer | None = None,
    out: Buffer | None = None,
) -> Buffer:  # fmt: skip
    """Return weight . x (+ bias) for a matrix with `n_in` columns, where x may have more, which are zeros. For `add_to`
    and `out` see `EncoderBuilder.product`."""
    weight = g.tensors.padded_columns(f"{name}.weight", n_out, n_in, x.n)
    return g.product(x, weight, bias=g.tensors.bias(name, n_out), add_to=add_to, out=out)

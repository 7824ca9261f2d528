"""The arguments of matrix product kernels, `matvec` and `matmul`. This module does not import numba."""

from typing import NamedTuple


class ProductArguments(NamedTuple):
    """y[token][row] = base[token][row] + w[row] . x[token]. Addresses and sizes in bytes are int64."""

    tokens: int  # address of the number of tokens
    x: int  # address of the activations, in the layout that the kernel expects
    w: int  # address of the first row of weights
    row_bytes: int
    n_in: int  # columns of a row
    n_out: int  # rows
    base: int  # address of float32 [token][n_out] to add the product to, or 0
    base_stride: int  # bytes between the tokens of `base`; 0 for a bias
    y: int  # address of the output, float32 [token][n_out]
    y_stride: int  # bytes between the tokens of y
    stop: int  # address of a flag that makes the kernel return early

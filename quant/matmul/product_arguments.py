"""The arguments of the matrix product kernels, `matvec` and `matmul`. This module does not import numba."""

from quant.jit.kernel import arguments_type

# y[token][row] = base[token][row] + w[row] . x[token]. Strides are in bytes.
PRODUCT_PARAMETERS = (
    "tokens",  # address of the number of tokens
    "x",  # address of the activations, in the layout that the kernel expects
    "w",  # address of the first row of weights
    "row_bytes",
    "n_in",  # columns of a row
    "n_out",  # rows
    "base",  # address of float32 [token][n_out], or 0
    "base_stride",  # between the tokens of `base`; 0 for a bias
    "y",  # address of the output, float32 [token][n_out]
    "y_stride",  # between the tokens of y
    "token_parts",  # into which many tokens are divided: see `quant.matmul.work_division`; only matmul reads it
    "access",  # address of a `RowAccess`, and of the choice that register tiles read after it
    "stop",  # address of a flag that makes the kernel return early
)
ProductArguments = arguments_type(PRODUCT_PARAMETERS)

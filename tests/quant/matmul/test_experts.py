"""Products with several matrices equal the products with each of them, wherever chunks divide their rows."""

import kernels
import numpy as np
import pytest

from localinfer.kernels.signatures import EXPERTS
from quant import FORMATS
from quant.matmul.row_access import default_row_access

N_IN = 512
RUNS = [(3, 0, 1), (0, 1, 3), (4, 4, 2)]  # matrix, first row, rows


@pytest.mark.parametrize("n_out", [8, 21, 64])
@pytest.mark.parametrize("name", ["Q4_K", "F16"])
@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_expert_matvec_equals_single_products(name: str, n_out: int, threads: int) -> None:
    fmt = FORMATS[kernels.NUMBERS[name]]
    weights = kernels.random_rows(name, 5 * n_out, N_IN)
    x = np.random.default_rng(1).standard_normal((6, N_IN)).astype(np.float32)
    bias = np.random.default_rng(2).standard_normal((5, n_out)).astype(np.float32)
    takes = fmt.activation_type(1)
    source = x if takes == "f32" else kernels.to_bf16(x) if takes == "bf16" else kernels.quantize_activations(x, 0, 1)
    runs, y = np.array([len(RUNS), *np.ravel(RUNS)]), np.zeros((6, n_out), np.float32)
    copies = {matrix: weights[n_out * matrix : n_out * (matrix + 1)].copy() for matrix, _, _ in RUNS}
    addresses = np.array([copies[matrix].ctypes.data if matrix in copies else 0 for matrix in range(5)])
    values = (
        np.array([6]), runs, source, addresses, weights.shape[1], N_IN, n_out, bias, y, 4 * n_out, 0, 4 * n_out,
        1, np.array([*default_row_access(), 0]), np.zeros(1, np.int64),
    )  # fmt: skip
    arguments = dict(zip(EXPERTS.parameters, values, strict=True))
    kernels.run(fmt.expert_matmul_kernels[False], arguments, threads, **fmt.expert_matmul_constants(1))
    for matrix, first, count in RUNS:
        rows = weights[n_out * matrix : n_out * (matrix + 1)]
        alone = np.repeat(bias[matrix : matrix + 1], count, axis=0)
        alone = kernels.matrix_product(name, "matvec", x[first : first + count], rows, 1, add_to=alone)
        assert np.array_equal(y[first : first + count], alone)

"""Saves products of matrices as an .npz file: products.py matvec|matmul OPERANDS OUT COMPILER

OPERANDS is an .npz file with the arrays NAME.PASSES.x and NAME.PASSES.rows for each product of activations and rows of
a format. COMPILER is an executable as in `logits`.
"""

import sys

import kernels
import numpy as np

from quant.jit import compiler_pool

function, operands, out, sys.executable = sys.argv[1:]
compiler_pool.compiles_in_other_processes = lambda: True  # although `kernels` imports numba
compiler_pool.usable_cores = lambda: 1
arrays, products = np.load(operands), {}
for product in {key.rpartition(".")[0] for key in arrays}:
    name, passes = product.split(".")
    x, rows = arrays[f"{product}.x"], arrays[f"{product}.rows"]
    products[product] = kernels.matrix_product(name, function, x, rows, int(passes), threads=2)
np.savez(out, **products)

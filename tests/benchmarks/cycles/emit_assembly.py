"""Writes the assembly of matrix product kernels for another CPU: emit_assembly.py TRIPLE FOLDER FORMAT.FUNCTION...

FUNCTION is matvec or matmul; the assembly goes to FOLDER/FORMAT.FUNCTION.s. NUMBA_CPU_NAME and NUMBA_CPU_FEATURES
select the CPU. Nothing is executed.
"""

import sys
from pathlib import Path

from cross_target import set_triple

triple, folder, *names = sys.argv[1:]
set_triple(triple)

from kernels import NUMBERS, PRODUCT  # noqa: E402  (numba must find that triple)

from quant import FORMATS  # noqa: E402
from quant.jit import compiler  # noqa: E402
from quant.jit.kernel import Kernel  # noqa: E402

for kernel in names:
    name, function = kernel.split(".")
    fmt = FORMATS[NUMBERS[name]]
    module, _ = fmt.matmul_kernels[function == "matmul"].split(":")
    constants = tuple(sorted(fmt.matmul_constants(1).items()))
    compiled = compiler.compile_module(Kernel(module, function, PRODUCT.parameters, constants=constants))
    Path(folder, f"{kernel}.s").write_text(compiler.target_machine().emit_assembly(compiled))

"""Prints the assembly of a format's matrix product, for any CPU: assembly.py TRIPLE FORMAT matvec|matmul

NUMBA_CPU_NAME and NUMBA_CPU_FEATURES select the CPU. The kernel is compiled but never run. As usual, a kernel that
calls a function outside `SYSTEM_FUNCTIONS` is an error.
"""

import sys

from cross_target import set_triple

triple, name, function = sys.argv[1:]
set_triple(triple)

from kernels import NUMBERS, PRODUCT  # noqa: E402  (numba must find that triple)

from quant import FORMATS  # noqa: E402
from quant.jit import compiler  # noqa: E402
from quant.jit.kernel import Kernel  # noqa: E402

fmt = FORMATS[NUMBERS[name]]
path = fmt.matmul_kernels[function == "matmul"]
kernel = Kernel(*path.split(":"), PRODUCT.parameters, constants=tuple(sorted(fmt.matmul_constants(1).items())))
print(compiler.target_machine().emit_assembly(compiler.compile_module(kernel)))

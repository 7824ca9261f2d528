"""The assembly of a format's product, for a CPU that need not be this one: assembly.py TRIPLE FORMAT matvec|matmul

NUMBA_CPU_NAME and NUMBA_CPU_FEATURES say which CPU. Compiled, never run; a kernel that would call a function that it
may not call is an error, as ever.
"""

import sys

import llvmlite.binding as llvm

triple, name, function = sys.argv[1:]
llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
llvm.get_process_triple = llvm.get_default_triple = lambda: triple
llvm.Target.from_default_triple = lambda: llvm.Target.from_triple(triple)

from kernels import NUMBERS, PRODUCT  # noqa: E402  (numba must find that triple)

from quant import FORMATS  # noqa: E402
from quant.jit import compiler  # noqa: E402
from quant.jit.kernel import Kernel  # noqa: E402

fmt = FORMATS[NUMBERS[name]]
path = fmt.products[function == "matmul"]
kernel = Kernel(*path.split(":"), PRODUCT.parameters, constants=tuple(sorted(fmt.constants(1).items())))
print(compiler.machine().emit_assembly(compiler.module_of(kernel)))

"""Answers each kernel on stdin with an object file, as `python -m quant.jit.compiler` does: cross_compiler.py TRIPLE

NUMBA_CPU_NAME and NUMBA_CPU_FEATURES select the CPU.
"""

import sys

from cross_target import set_triple

set_triple(sys.argv[1])

from quant.jit.compiler import main  # noqa: E402  (numba must find that triple)

main()

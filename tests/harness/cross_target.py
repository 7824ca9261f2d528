"""Makes numba and LLVM compile for another operating system or architecture."""

import os

import llvmlite.binding as llvm


def set_triple(triple: str) -> None:
    """Compile for `triple`, such as aarch64-unknown-linux-gnu. Must be called before numba or `quant` are imported.

    NUMBA_CPU_NAME and NUMBA_CPU_FEATURES select the CPU; without them, it is the one of this machine. They are always
    set then, so that what is recorded about this machine, with its triple, is not used.
    """
    os.environ.setdefault("NUMBA_CPU_NAME", llvm.get_host_cpu_name())
    os.environ.setdefault("NUMBA_CPU_FEATURES", llvm.get_host_cpu_features().flatten())
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.get_process_triple = llvm.get_default_triple = lambda: triple
    llvm.Target.from_default_triple = lambda: llvm.Target.from_triple(triple)

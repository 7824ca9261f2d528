"""Loads kernels: from the cache, or compiled by numba and then cached. llvmlite loads the machine code."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from quant.jit.kernel import Kernel
from quant.jit.kernel_cache import KernelCache

if TYPE_CHECKING:
    import llvmlite.binding as llvm

Progress = Callable[[str, int, int], None]


@cache
def execution_engine() -> "llvm.ExecutionEngine":
    """Return the LLVM execution engine of this process. Loaded code stays until the process ends."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)


LOADED_KERNELS: dict[Kernel, int] = {}
LOADING = threading.Lock()  # one thread at a time loads object files


def load_kernels(
    kernels: Iterable[Kernel], root: Path | None, progress: Progress | None = None
) -> tuple[dict[Kernel, int], list[str]]:
    """Return the addresses of kernels' entry points, and warnings for the user.

    Kernels that are not in the cache under `root` are compiled; `progress("compile", done, total)` reports each one.
    `root` = None disables the cache.
    """
    wanted, files = list(dict.fromkeys(kernels)), KernelCache(root)
    if missing := load_cached(wanted, files):
        load_objects(compile_missing(missing, files, progress))
    return addresses_of(wanted), files.warnings


def load_cached(kernels: Sequence[Kernel], files: KernelCache) -> list[Kernel]:
    """Load the kernels that are in the cache. Return the others."""
    found = {kernel: files.read(kernel) for kernel in kernels if kernel not in LOADED_KERNELS}
    load_objects({kernel: code for kernel, code in found.items() if code is not None})
    return [kernel for kernel in found if kernel not in LOADED_KERNELS]


def addresses_of(kernels: Iterable[Kernel]) -> dict[Kernel, int]:
    """Return the addresses of loaded kernels."""
    return {kernel: LOADED_KERNELS[kernel] for kernel in kernels}


def compile_missing(kernels: list[Kernel], files: KernelCache, progress: Progress | None) -> dict[Kernel, bytes]:
    """Compile kernels, write them to the cache, and return their object files."""
    from quant.jit.compiler_pool import compile_all

    compiled = {}
    if progress:
        progress("compile", 0, len(kernels))
    for done, (kernel, code) in enumerate(compile_all(kernels), 1):
        files.write(kernel, code)
        compiled[kernel] = code
        if progress:
            progress("compile", done, len(kernels))
    return compiled


def load_objects(objects: Mapping[Kernel, bytes]) -> None:
    """Load object files and record the kernels' addresses in `LOADED_KERNELS`."""
    import llvmlite.binding as llvm

    with LOADING:
        for code in objects.values():
            execution_engine().add_object_file(llvm.ObjectFileRef.from_data(code))
        execution_engine().finalize_object()
        for kernel in objects:
            if address := execution_engine().get_function_address(kernel.symbol):
                LOADED_KERNELS[kernel] = address

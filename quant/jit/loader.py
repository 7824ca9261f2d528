"""Kernels as addresses: taken from the cache, or compiled once by numba and kept, and loaded by llvmlite."""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from quant.jit.kernel import Kernel
from quant.jit.kernel_cache import Cache
from quant.jit.pool import compile_all

if TYPE_CHECKING:
    import llvmlite.binding as llvm

Progress = Callable[[str, int, int], None]


@cache
def engine() -> "llvm.ExecutionEngine":
    """The one place in the process that machine code is loaded into; it stays until the process ends."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)


ADDRESSES: dict[Kernel, int] = {}


def addresses(
    kernels: Iterable[Kernel], root: Path | None, progress: Progress | None = None
) -> tuple[dict[Kernel, int], list[str]]:
    """The entry points of kernels, compiled where the cache under `root` has none, and warnings for the user."""
    wanted = list(dict.fromkeys(kernels))
    files = Cache(root)
    found = {kernel: files.read(kernel) for kernel in wanted if kernel not in ADDRESSES}
    load({kernel: code for kernel, code in found.items() if code is not None})
    missing = [kernel for kernel in found if kernel not in ADDRESSES]
    if missing and progress:
        progress("compile", 0, len(missing))
    compiled = {}
    for done, (kernel, code) in enumerate(compile_all(missing), 1):
        files.write(kernel, code)
        compiled[kernel] = code
        if progress:
            progress("compile", done, len(missing))
    load(compiled)
    return {kernel: ADDRESSES[kernel] for kernel in wanted}, files.warnings


def load(objects: Mapping[Kernel, bytes]) -> None:
    """Have the addresses of kernels from their object files, those that are in there."""
    import llvmlite.binding as llvm

    for code in objects.values():
        engine().add_object_file(llvm.ObjectFileRef.from_data(code))
    engine().finalize_object()
    for kernel in objects:
        if address := engine().get_function_address(kernel.symbol):
            ADDRESSES[kernel] = address

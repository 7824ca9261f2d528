"""Loads kernels: from the cache, or compiled by numba and then cached.

A warm start imports neither numba nor llvmlite.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from quant.jit import executable_memory
from quant.jit.kernel import Kernel
from quant.jit.kernel_cache import KernelCache
from quant.jit.object_file import ObjectFile, ObjectFileError

Progress = Callable[[str, int, int], None]

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
    found = {}
    for kernel in kernels:
        code = files.read(kernel.symbol) if kernel not in LOADED_KERNELS else None
        if code is not None:
            with contextlib.suppress(ObjectFileError):  # it is compiled again
                found[kernel] = parse_kernel(kernel, code)
    load_objects(found)
    return [kernel for kernel in kernels if kernel not in LOADED_KERNELS]


def parse_kernel(kernel: Kernel, code: bytes) -> ObjectFile:
    """Parse the object file of a kernel.

    Raises ObjectFileError if it is malformed, or calls other functions than those of `quant.jit.executable_memory`.
    """
    parsed = ObjectFile(code, kernel.symbol)
    executable_memory.require_loadable(parsed)
    return parsed


def addresses_of(kernels: Iterable[Kernel]) -> dict[Kernel, int]:
    """Return the addresses of loaded kernels."""
    return {kernel: LOADED_KERNELS[kernel] for kernel in kernels}


def compile_missing(
    kernels: Sequence[Kernel], files: KernelCache, progress: Progress | None
) -> dict[Kernel, ObjectFile]:
    """Compile kernels, write them to the cache, and return their object files."""
    from quant.jit.compiler_pool import compile_all

    compiled = {}
    if progress:
        progress("compile", 0, len(kernels))
    for done, (kernel, code) in enumerate(compile_all(kernels), 1):
        files.write(kernel.symbol, code)
        compiled[kernel] = parse_kernel(kernel, code)
        if progress:
            progress("compile", done, len(kernels))
    return compiled


def load_objects(objects: Mapping[Kernel, ObjectFile]) -> None:
    """Load object files and record the kernels' addresses in `LOADED_KERNELS`. Raises the errors of
    `executable_memory.load`."""
    with LOADING:
        addresses = executable_memory.load(list(objects.values()), executable_memory.system_function)
        for (kernel, parsed), address in zip(objects.items(), addresses, strict=True):
            LOADED_KERNELS[kernel] = address + parsed.entry

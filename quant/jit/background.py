"""Compiles kernels in the background, while others already run.

A program that is started for the first time has no cached kernels. It needs some of them at once, and the others a
little later.
"""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from quant.jit import loader
from quant.jit.kernel import Kernel
from quant.jit.kernel_cache import KernelCache
from quant.jit.loader import Progress
from quant.jit.object_file import ObjectFileError

if TYPE_CHECKING:
    from quant.jit.compiler_pool import CompilerPool

POLL_SECONDS = 0.1


class BackgroundCompilation:
    """Kernels that a thread loads, and writes to the cache, as soon as the compiler processes have finished them.

    `results` are the results of the pool that are not loaded yet; `kernels` is what they will contain.
    """

    def __init__(
        self,
        kernels: Sequence[Kernel],
        pool: "CompilerPool",
        results: Iterator[tuple[Kernel, bytes]],
        files: KernelCache,
    ) -> None:
        self._missing, self._n_kernels, self._files = set(kernels), len(kernels), files
        self._pool, self._results, self._error = pool, results, RuntimeError("the kernel compiler was stopped")
        self._finished = threading.Event()
        threading.Thread(target=self._run, name="kernels", daemon=True).start()

    def _run(self) -> None:
        try:
            for kernel, code in self._results:
                self._files.write(kernel.symbol, code)
                loader.load_objects({kernel: loader.parse_kernel(kernel, code)})
                self._missing.discard(kernel)
        except (RuntimeError, MemoryError, ObjectFileError) as error:
            self._error = RuntimeError(f"kernels compiled in the background: {error or 'not enough memory'}")
        finally:
            self._pool.close()
            self._finished.set()

    @property
    def is_complete(self) -> bool:
        """Whether all kernels are loaded."""
        return self._finished.is_set() and not self._missing

    def wait(self, progress: Progress | None = None) -> None:
        """Wait for all kernels; `progress("compile_rest", done, total)` is called meanwhile.

        Raises RuntimeError if a compiler process failed, or after `close`.
        """
        while not self._finished.wait(POLL_SECONDS):
            if progress:
                progress("compile_rest", self._n_kernels - len(self._missing), self._n_kernels)
        if progress:
            progress("compile_rest", self._n_kernels, self._n_kernels)
        if self._missing:
            raise self._error

    def close(self) -> None:
        """Terminate the compiler processes. The kernels that are finished stay in the cache."""
        self._pool.close()
        self._finished.wait()


def load_in_order(
    kernels: Sequence[Kernel], later: Sequence[Kernel], root: Path | None, progress: Progress | None = None
) -> tuple[BackgroundCompilation | None, list[str]]:
    """Load `kernels`, and those of `later` if they are cached. Return the compilation of the others, and warnings for
    the user.

    `progress("compile", done, total)` counts what it waits for. If kernels are compiled in this process, it waits for
    all. Raises RuntimeError if a compiler process fails.
    """
    files, needed = KernelCache(root), set(kernels)
    missing = loader.load_cached(list(dict.fromkeys([*kernels, *later])), files)
    if not missing:
        return None, files.warnings
    from quant.jit.compiler_pool import CompilerPool, compiles_in_other_processes

    if not compiles_in_other_processes():
        loader.load_objects(loader.compile_missing(missing, files, progress))
        return None, files.warnings
    first, rest = [each for each in missing if each in needed], [each for each in missing if each not in needed]
    pool = CompilerPool(first, rest)
    with contextlib.ExitStack() as on_return:
        on_return.callback(pool.close)
        results, compiled = pool.results(), set[Kernel]()
        while remaining := set(first) - compiled:
            if progress:
                progress("compile", len(first) - len(remaining), len(first))
            kernel, code = next(results)
            files.write(kernel.symbol, code)
            loader.load_objects({kernel: loader.parse_kernel(kernel, code)})
            compiled.add(kernel)
        if progress and first:
            progress("compile", len(first), len(first))
        if unfinished := [each for each in rest if each not in compiled]:
            on_return.pop_all()
            return BackgroundCompilation(unfinished, pool, results, files), files.warnings
    return None, files.warnings

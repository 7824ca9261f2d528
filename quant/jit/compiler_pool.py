"""Compiles kernels in parallel, in one process per core, so that this process never imports numba."""

import base64
import contextlib
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence

from quant.jit.kernel import Kernel


def compile_all(kernels: Sequence[Kernel]) -> Iterator[tuple[Kernel, bytes]]:
    """Yield each kernel with its object file, in the order in which compilations finish.

    Compiles in this process if numba is imported already or if no Python interpreter can be started. Raises
    RuntimeError if a compiler process ends without a result. Terminates all compiler processes if the caller stops
    early.
    """
    if not compiles_in_other_processes():
        from quant.jit.compiler import compile_kernel

        yield from ((kernel, compile_kernel(kernel)) for kernel in kernels)
        return
    with contextlib.closing(CompilerPool(kernels)) as pool:
        yield from pool.results()


def compiles_in_other_processes() -> bool:
    """Return whether kernels are compiled in other processes, not in this one."""
    return "numba" not in sys.modules and bool(sys.executable)


class CompilerPool:
    """Compiler processes, one per core. They compile all of `kernels` before those of `later`."""

    def __init__(self, kernels: Sequence[Kernel], later: Sequence[Kernel] = ()) -> None:
        todo, self._missing = [KernelQueue(kernels), KernelQueue(later)], len(kernels) + len(later)
        self._done: queue.SimpleQueue[tuple[Kernel, bytes] | Exception] = queue.SimpleQueue()
        self._compilers = [start_compiler() for _ in range(min(usable_cores(), self._missing))]
        for compiler in self._compilers:
            threading.Thread(target=feed_compiler, args=(compiler, todo, self._done), daemon=True).start()

    def results(self) -> Iterator[tuple[Kernel, bytes]]:
        """Yield each kernel with its object file, in the order in which compilations finish.

        Raises RuntimeError if a compiler process ends without a result.
        """
        while self._missing:
            answer = self._done.get()
            if isinstance(answer, Exception):
                raise answer
            self._missing -= 1
            yield answer

    def close(self) -> None:
        """Terminate all compiler processes."""
        for compiler in self._compilers:
            compiler.kill()
            compiler.wait()


class KernelQueue:
    """Kernels that are to be compiled. A compiler gets variants of functions that it compiled before, because variants
    share work in its process.
    """

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        self._lock = threading.Lock()
        self._variants: dict[tuple[str, str], list[Kernel]] = {}
        for kernel in kernels:
            self._variants.setdefault((kernel.module, kernel.function), []).append(kernel)
        self._compilers = dict.fromkeys(self._variants, 0)  # the number of compilers that had variants of a function

    def take(self, compiled: Sequence[Kernel]) -> Kernel | None:
        """Remove and return the next kernel for the compiler that has `compiled` these, or None if there is none.

        A compiler that has compiled all variants of its functions continues with one that the fewest compilers have.
        """
        with self._lock:
            if not self._variants:
                return None
            known = ((each.module, each.function) for each in reversed(compiled))
            function = next((each for each in known if each in self._variants), None)
            if function is None:
                function = min(self._variants, key=self._compilers.__getitem__)
                self._compilers[function] += 1
            variants = self._variants[function]
            kernel = variants.pop(0)
            if not variants:
                del self._variants[function]
            return kernel


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start_compiler() -> "subprocess.Popen[bytes]":
    """Start a process that answers each kernel on stdin with an object file: see `quant.jit.compiler`.

    It has the module search path of this process. The option -P keeps the current directory, which may contain another
    `quant`, out of it.
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path or os.curdir for path in sys.path)}
    command, pipe = [sys.executable, "-P", "-m", "quant.jit.compiler"], subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe)


def feed_compiler(
    compiler: "subprocess.Popen[bytes]",
    queues: Sequence[KernelQueue],
    done: "queue.SimpleQueue[tuple[Kernel, bytes] | Exception]",
) -> None:
    """Send the kernels of all queues to one compiler process, one at a time, until none is left."""
    assert compiler.stdin is not None
    assert compiler.stdout is not None
    assert compiler.stderr is not None
    compiled = list[Kernel]()
    with contextlib.suppress(OSError, ValueError):
        while kernel := next(filter(None, (each.take(compiled) for each in queues)), None):
            compiler.stdin.write(kernel.to_json().encode() + b"\n")
            compiler.stdin.flush()
            answer = compiler.stdout.readline()
            if not answer:
                trouble = compiler.stderr.read().decode(errors="replace").strip().splitlines()
                done.put(RuntimeError(f"{kernel.function}: the kernel compiler failed: {(trouble or ['ended'])[-1]}"))
                return
            done.put((kernel, base64.b64decode(answer)))
            compiled.append(kernel)

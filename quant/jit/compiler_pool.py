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
    if "numba" in sys.modules or not sys.executable:
        from quant.jit.compiler import compile_kernel

        yield from ((kernel, compile_kernel(kernel)) for kernel in kernels)
        return
    todo = KernelQueue(kernels)
    done: queue.SimpleQueue[tuple[Kernel, bytes] | Exception] = queue.SimpleQueue()
    compilers = [start_compiler() for _ in range(min(usable_cores(), len(kernels)))]
    try:
        for compiler in compilers:
            threading.Thread(target=feed_compiler, args=(compiler, todo, done), daemon=True).start()
        for _ in kernels:
            answer = done.get()
            if isinstance(answer, Exception):
                raise answer
            yield answer
    finally:
        for compiler in compilers:
            compiler.kill()
            compiler.wait()


class KernelQueue:
    """Kernels that are to be compiled. A compiler gets variants of one function, which share work in its process."""

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        self._lock = threading.Lock()
        self._variants: dict[tuple[str, str], list[Kernel]] = {}
        for kernel in kernels:
            self._variants.setdefault((kernel.module, kernel.function), []).append(kernel)
        self._compilers = dict.fromkeys(self._variants, 0)  # the number of compilers that had variants of a function

    def take(self, previous: Kernel | None) -> Kernel | None:
        """Remove and return the next kernel for the compiler that compiled `previous`, or None if there is none.

        A compiler that has compiled all variants of a function continues with one that the fewest compilers have.
        """
        with self._lock:
            if not self._variants:
                return None
            function = (previous.module, previous.function) if previous else None
            if function not in self._variants:
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
    todo: KernelQueue,
    done: "queue.SimpleQueue[tuple[Kernel, bytes] | Exception]",
) -> None:
    """Send kernels to one compiler process, one at a time, until none is left."""
    assert compiler.stdin is not None
    assert compiler.stdout is not None
    assert compiler.stderr is not None
    kernel = None
    with contextlib.suppress(OSError, ValueError):
        while kernel := todo.take(kernel):
            compiler.stdin.write(kernel.to_json().encode() + b"\n")
            compiler.stdin.flush()
            answer = compiler.stdout.readline()
            if not answer:
                trouble = compiler.stderr.read().decode(errors="replace").strip().splitlines()
                done.put(RuntimeError(f"{kernel.function}: the kernel compiler failed: {(trouble or ['ended'])[-1]}"))
                return
            done.put((kernel, base64.b64decode(answer)))

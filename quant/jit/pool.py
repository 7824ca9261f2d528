"""Kernels to object files in a process for each core, so that this one never has to import numba."""

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
    """Object files, as they are made: by a process for each core, so that this one never has to import numba.

    Where numba is here already, or no Python can be started, it is done here.
    Raises RuntimeError when a compiler ends without an answer; ends them all when the caller stops early.
    """
    if "numba" in sys.modules or not sys.executable:
        from quant.jit.compiler import compile_kernel

        yield from ((kernel, compile_kernel(kernel)) for kernel in kernels)
        return
    todo: queue.SimpleQueue[Kernel] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[Kernel, bytes] | Exception] = queue.SimpleQueue()
    for kernel in kernels:
        todo.put(kernel)
    compilers = [start_compiler() for _ in range(min(usable_cores(), len(kernels)))]
    try:
        for compiler in compilers:
            threading.Thread(target=feed, args=(compiler, todo, done), daemon=True).start()
        for _ in kernels:
            answer = done.get()
            if isinstance(answer, Exception):
                raise answer
            yield answer
    finally:
        for compiler in compilers:
            compiler.kill()
            compiler.wait()


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start_compiler() -> "subprocess.Popen[bytes]":
    """A process that answers each kernel on its standard input with an object file: see `quant.jit.compiler`.

    It finds modules where this process does; not (-P) in the current directory first, which may have a `quant`, too.
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path or os.curdir for path in sys.path)}
    command, pipe = [sys.executable, "-P", "-m", "quant.jit.compiler"], subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe)


def feed(
    compiler: "subprocess.Popen[bytes]",
    todo: "queue.SimpleQueue[Kernel]",
    done: "queue.SimpleQueue[tuple[Kernel, bytes] | Exception]",
) -> None:
    """Give one compiler a kernel after the other, as long as there are any."""
    assert compiler.stdin is not None
    assert compiler.stdout is not None
    assert compiler.stderr is not None
    with contextlib.suppress(queue.Empty, OSError, ValueError):
        while True:
            kernel = todo.get_nowait()
            compiler.stdin.write(kernel.to_json().encode() + b"\n")
            compiler.stdin.flush()
            answer = compiler.stdout.readline()
            if not answer:
                trouble = compiler.stderr.read().decode(errors="replace").strip().splitlines()
                done.put(RuntimeError(f"{kernel.function}: the kernel compiler failed: {(trouble or ['ended'])[-1]}"))
                return
            done.put((kernel, base64.b64decode(answer)))

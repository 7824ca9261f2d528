"""A program that runs the Python program on its stdin with limits, and exits with the code that it is given.

    python -I -S -B limited_python.py CODE CPU_SECONDS MEMORY_BYTES FILE_BYTES < program.py

It is run as a file, in a process of its own, and imports nothing of localinfer.
"""

import contextlib
import ctypes
import os
import sys

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000  # of Linux, in <sched.h>


def leave_network() -> None:
    """Enter an empty network namespace, on Linux, if the system allows it."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).unshare(CLONE_NEWNET if os.geteuid() == 0 else CLONE_NEWUSER | CLONE_NEWNET)


def limit_resources(cpu_seconds: int, memory_bytes: int, file_bytes: int) -> None:
    """Limit this process. Windows has no such limits, and macOS none on memory."""
    with contextlib.suppress(ImportError):
        import resource

        limits = {
            resource.RLIMIT_CPU: cpu_seconds, resource.RLIMIT_AS: memory_bytes, resource.RLIMIT_FSIZE: file_bytes,
            resource.RLIMIT_CORE: 0, resource.RLIMIT_NPROC: 0,
        }  # fmt: skip
        for kind, limit in limits.items():
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(kind, (limit, limit))


def main() -> None:
    program = sys.stdin.buffer.read().decode()
    code, *limits = map(int, sys.argv[1:])
    leave_network()
    limit_resources(*limits)
    exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
    os._exit(code)


if __name__ == "__main__":
    main()

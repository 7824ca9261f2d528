"""Runs a Python program that a model wrote, and tells whether it runs to its end.

A child process runs it in an empty temporary directory, without the environment variables of this process, and with
limits: WALL_SECONDS, CPU_SECONDS, memory, the size of files, no further processes (unless it is root), and on Linux no
network, if the system lets this user make network namespaces. That protects from mistakes: endless loops, too much
memory, files in the current directory. It does not protect from malice: the program runs as this user and may read
files, and change or remove those that the user may. A container or a virtual machine protects from that.
"""

import os
import secrets
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from localinfer.errors import LocalInferError
from localinfer.evaluation.tasks import limited_python

WALL_SECONDS, CPU_SECONDS = 10.0, 5
MEMORY_BYTES, FILE_BYTES = 1 << 30, 1 << 20
CODES = range(64, 128)  # exit codes of programs that ran to their end; which one is random


def passes(program: str) -> bool:
    """Return whether a program runs to its end within the limits: without an error, and without exiting before."""
    code = CODES[secrets.randbelow(len(CODES))]
    with tempfile.TemporaryDirectory(prefix="localinfer-eval-", ignore_cleanup_errors=True) as directory:
        limits = map(str, (code, CPU_SECONDS, MEMORY_BYTES, FILE_BYTES))
        try:
            child = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", str(Path(limited_python.__file__)), *limits],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=directory,
                env=minimal_environment(), start_new_session=True,
                creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
            )  # fmt: skip
        except OSError as error:
            raise LocalInferError(f"sandbox: {error.strerror}") from None
        try:
            child.communicate(program.encode("utf-8", "replace"), timeout=WALL_SECONDS)
        except subprocess.TimeoutExpired:
            return False
        finally:
            kill(child)
    return child.returncode == code


def kill(child: "subprocess.Popen[bytes]") -> None:
    """End a child process, and those that it has started."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    child.kill()
    child.wait()


def minimal_environment() -> dict[str, str]:
    """Return the environment variables without which a system starts no Python process."""
    return {name: os.environ[name] for name in ("SYSTEMROOT",) if name in os.environ}

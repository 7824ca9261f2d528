"""Kernels as machine code: compiled once by numba, kept as plain object files, loaded by llvmlite.

A kernel is named, not imported: a program whose kernels are all in the cache never imports numba, which is most of
what starting would otherwise cost. A cached kernel is an object file behind its SHA-256, so a damaged one is noticed
and compiled again; the directory's name holds a hash of everything that machine code depends on (the kernel sources,
the versions, the CPU), so an old one is never found. What is no longer used is removed when a new one is made.
"""

import base64
import contextlib
import hashlib
import json
import os
import queue
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from quant import cpu

if TYPE_CHECKING:
    import llvmlite.binding as llvm

Progress = Callable[[str, int, int], None]
DIGEST_BYTES = 32
KEPT = 8  # directories of other versions and CPUs ...
KEPT_SECONDS = 7 * 24 * 3600  # ... and all that were used so lately, by another checkout or another machine


@dataclass(frozen=True, slots=True)
class Kernel:
    """A function of a module, the names of its arguments, and constants that are compiled into it.

    `module:function` makes the kernel's Python function from the constants: `function(**constants)`.
    Its arguments are `parameters` in order (int64, or float64 where the name is in `floats`), then `part` and
    `parts`, which say what share of the work is asked for, and `scratch`, memory that nobody else uses meanwhile.
    """

    module: str
    function: str
    parameters: tuple[str, ...] = ()
    floats: frozenset[str] = frozenset()
    constants: tuple[tuple[str, int | str], ...] = ()

    @property
    def symbol(self) -> str:
        """The name of its entry point, unique to its contents."""
        return f"{self.function}_{hashlib.sha256(self.to_json().encode()).hexdigest()[:16]}"

    def to_json(self) -> str:
        """The kernel on one line."""
        return json.dumps([self.module, self.function, self.parameters, sorted(self.floats), self.constants])

    @classmethod
    def from_json(cls, line: str) -> "Kernel":
        """The kernel that `to_json` wrote."""
        module, function, parameters, floats, constants = json.loads(line)
        inside = tuple((name, value) for name, value in constants)
        return cls(module, function, tuple(parameters), frozenset(floats), inside)


# --- the cache ----------------------------------------------------------------------------------------------------


@cache
def sources_digest() -> str:
    """A hash of every file that a kernel's machine code can come from."""
    digest = hashlib.sha256()
    root = Path(__file__).parent
    for folder in (root, root.parent / "localinfer" / "ops"):
        for path in sorted([*folder.glob("*.py"), *folder.glob("*.npz")]):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def cache_key() -> str:
    """The name of the directory for kernels of this program, this stack and this CPU."""
    from importlib.metadata import version

    parts = [sources_digest(), version("numba"), version("llvmlite"), sys.version, cpu.identity()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


class Cache:
    """Object files in a private directory; every failure to read or write one only costs a compilation."""

    def __init__(self, root: Path | None) -> None:
        self.warnings: list[str] = []
        self.directory = self._private(root / cache_key()) if root else None

    def _private(self, directory: Path) -> Path | None:
        """Machine code is only taken from a directory that nobody else can write to."""
        new = not directory.exists()
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in (directory, directory.parent):
                info = folder.stat()
                mine = not hasattr(os, "getuid") or info.st_uid == os.getuid()
                if not mine or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                    self.warnings.append(f"{folder}: kernel cache not used: others can write to it")
                    return None
        except OSError as error:
            self.warnings.append(f"{directory}: kernel cache not used: {error.strerror}")
            return None
        with contextlib.suppress(OSError):
            os.utime(directory)  # says when it was last used
        if new:
            remove_unused(directory.parent)
        return directory

    def read(self, kernel: Kernel) -> bytes | None:
        """The object file, if it is there and whole."""
        if self.directory is None:
            return None
        try:
            content = (self.directory / f"{kernel.symbol}.o").read_bytes()
        except OSError:
            return None
        digest, code = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
        return code if hashlib.sha256(code).digest() == digest else None

    def write(self, kernel: Kernel, code: bytes) -> None:
        """Keep an object file: complete or not at all, whoever else writes it meanwhile."""
        if self.directory is None:
            return
        temporary = None
        try:
            handle, temporary = tempfile.mkstemp(dir=self.directory, prefix=".writing-")
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(code).digest() + code)
            Path(temporary).replace(self.directory / f"{kernel.symbol}.o")
        except OSError as error:
            self.warnings.append(f"{self.directory}: kernel cache not written: {error.strerror}")
            self.directory = None
            if temporary is not None:
                Path(temporary).unlink(missing_ok=True)


def generations(root: Path) -> list[Path]:
    """The directories of all versions and CPUs, the one that was used last first."""
    try:
        folders = [path for path in root.iterdir() if re.fullmatch("[0-9a-f]{24}", path.name) and not path.is_symlink()]
        return sorted(folders, key=lambda path: -path.stat().st_mtime)
    except OSError:  # not there, not ours to read, or another process removes some
        return []


def remove_unused(root: Path) -> None:
    """Remove what nobody has used lately. A process that still does would compile again."""
    for folder in generations(root)[KEPT:]:
        with contextlib.suppress(OSError):
            if folder.stat().st_mtime < time.time() - KEPT_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)


# --- compiling ---


def compile_all(kernels: Sequence[Kernel]) -> Iterator[tuple[Kernel, bytes]]:
    """Object files, as they are made: by a process for each core, so that this one never has to import numba.

    Where numba is here already, or no Python can be started, it is done here.
    Raises RuntimeError when a compiler ends without an answer; ends them all when the caller stops early.
    """
    if "numba" in sys.modules or not sys.executable:
        from quant.compiler import compile_kernel

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
    """A process that answers each kernel on its standard input with an object file: see `quant.compiler`."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command, pipe = [sys.executable, "-m", "quant.compiler"], subprocess.PIPE
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


# --- loading ------------------------------------------------------------------------------------------------------


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
    import llvmlite.binding as llvm

    wanted = list(dict.fromkeys(kernels))
    files = Cache(root)
    found = {kernel: files.read(kernel) for kernel in wanted if kernel not in ADDRESSES}
    objects = {kernel: code for kernel, code in found.items() if code is not None}
    missing = [kernel for kernel in found if kernel not in objects]
    if missing and progress:
        progress("compile", 0, len(missing))
    for done, (kernel, code) in enumerate(compile_all(missing), 1):
        files.write(kernel, code)
        objects[kernel] = code
        if progress:
            progress("compile", done, len(missing))
    for code in objects.values():
        engine().add_object_file(llvm.ObjectFileRef.from_data(code))
    engine().finalize_object()
    for kernel in objects:
        ADDRESSES[kernel] = engine().get_function_address(kernel.symbol)
    return {kernel: ADDRESSES[kernel] for kernel in wanted}, files.warnings

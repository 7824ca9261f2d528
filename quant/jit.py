"""Kernels as machine code: compiled once by numba, kept as plain object files, loaded by llvmlite.

A kernel is named, not imported: a program whose kernels are all in the cache never imports numba, which is most of
what starting would otherwise cost. A cached kernel is an object file behind its SHA-256, so a damaged one is noticed
and compiled again; the directory's name holds a hash of everything that machine code depends on (the kernel sources,
the versions, the CPU), so an old one is never found.
"""

import hashlib
import importlib
import inspect
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quant import cpu

if TYPE_CHECKING:
    import llvmlite.binding as llvm

Progress = Callable[[str, int, int], None]
DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Kernel:
    """A function of a module, the names of its arguments, and constants that are compiled into it.

    `module:function` makes the kernel's Python function from the constants: `function(**constants)`.
    Its arguments are `parameters` in order (int64, or float64 where the name is in `floats`), then `thread` and
    `threads`.
    """

    module: str
    function: str
    parameters: tuple[str, ...] = ()
    floats: frozenset[str] = frozenset()
    constants: tuple[tuple[str, int | str], ...] = ()

    @property
    def symbol(self) -> str:
        """The name of its entry point, unique to its contents."""
        text = repr((self.module, self.function, self.parameters, sorted(self.floats), self.constants))
        return f"{self.function}_{hashlib.sha256(text.encode()).hexdigest()[:16]}"


# --- compiling ----------------------------------------------------------------------------------------------------


def compile_kernel(kernel: Kernel) -> bytes:
    """The kernel's object file.

    Raises TypeError when the plan's argument names are not those of the kernel.
    """
    import numba

    body = getattr(importlib.import_module(kernel.module), kernel.function)(**dict(kernel.constants))
    expected = [*kernel.parameters, "thread", "threads"]
    if list(inspect.signature(body).parameters) != expected:
        raise TypeError(f"{kernel.module}:{kernel.function} takes {inspect.signature(body)}, not {expected}")
    entry = numba.njit(entry_point(numba.njit(error_model="numpy")(body), kernel), error_model="numpy")
    entry.compile((numba.int64, numba.int64, numba.int64))
    [result] = entry.overloads.values()
    return emit_object(result, kernel.symbol)


def entry_point(body: Any, kernel: Kernel) -> Any:
    """A function of (op, thread, threads) that reads the kernel's arguments from the op record."""
    from numba import types

    from quant.simd import load

    reads = [
        f"load({'float64' if name in kernel.floats else 'int64'}, op + {8 * (OP_HEADER_WORDS + index)})"
        for index, name in enumerate(kernel.parameters)
    ]
    source = f"def entry(op, thread, threads):\n    body({', '.join([*reads, 'thread', 'threads'])})\n"
    scope = {"body": body, "load": load, "int64": types.int64, "float64": types.float64}
    exec(compile(source, f"<entry of {kernel.function}>", "exec"), scope)
    return scope["entry"]


# What machine code may ask of the process that loads it: the C library, and nothing of Python or numba.
ALLOWED = {"memset", "memcpy", "memmove", "sched_yield"}

# numba's own functions return a status and where an exception lies; kernels raise nothing, so both are dropped.
ENTRY = """
declare i32 @"{native}"(ptr, ptr, i64, i64, i64)
define void @"{symbol}"(i64 %op, i64 %thread, i64 %threads) {{
  %result = alloca ptr
  %exception = alloca ptr
  call i32 @"{native}"(ptr %result, ptr %exception, i64 %op, i64 %thread, i64 %threads)
  ret void
}}
"""


def emit_object(result: Any, symbol: str) -> bytes:
    """One object file in which only the entry point is visible, so that no two files can clash.

    Raises TypeError when the kernel needs more than memory and arithmetic.
    """
    import llvmlite.binding as llvm

    library = result.library
    module = llvm.parse_bitcode(library._final_module.as_bitcode())
    native = result.fndesc.llvm_func_name
    module.link_in(llvm.parse_assembly(ENTRY.format(native=native, symbol=symbol)))
    for item in [*module.functions, *module.global_variables]:
        if item.name != symbol and not item.is_declaration:
            item.linkage = "internal"
    machine = library._codegen._tm
    cleaning = llvm.create_new_module_pass_manager()
    cleaning.add_global_dead_code_eliminate_pass()
    cleaning.add_strip_dead_prototype_pass()
    cleaning.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))
    foreign = {f.name for f in module.functions if f.is_declaration and not f.name.startswith("llvm.")} - ALLOWED
    if foreign:
        raise TypeError(f"kernel {symbol} would call {', '.join(sorted(foreign))}")
    return bytes(machine.emit_object(module))


# --- the cache ----------------------------------------------------------------------------------------------------

# The words of an op record before a kernel's own arguments; see localinfer.plan.
OP_HEADER_WORDS = 4


@cache
def sources_digest() -> str:
    """A hash of every file that a kernel's machine code can come from."""
    digest = hashlib.sha256()
    root = Path(__file__).parent
    for folder in (root, root.parent / "localinfer" / "ops"):
        for path in sorted(folder.glob("*.py")):
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
    objects = {kernel: files.read(kernel) for kernel in wanted if kernel not in ADDRESSES}
    missing = [kernel for kernel, code in objects.items() if code is None]
    for done, kernel in enumerate(missing):
        if progress:
            progress("compile", done, len(missing))
        objects[kernel] = compile_kernel(kernel)
        files.write(kernel, objects[kernel] or b"")
    if progress and missing:
        progress("compile", len(missing), len(missing))
    for code in objects.values():
        engine().add_object_file(llvm.ObjectFileRef.from_data(code))
    engine().finalize_object()
    for kernel in objects:
        ADDRESSES[kernel] = engine().get_function_address(kernel.symbol)
    return {kernel: ADDRESSES[kernel] for kernel in wanted}, files.warnings

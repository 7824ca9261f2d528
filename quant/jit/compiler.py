"""Compiles kernels to object files. This is the only module that runs numba's compiler.

`python -m quant.jit.compiler` reads a kernel as JSON from each line of stdin, and writes its object file,
base64-encoded, as one line to stdout.
"""

import base64
import gc
import importlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numba
from numba.core.errors import TypingError

from quant.jit.cpu import elf_triple, reserved_registers
from quant.jit.executable_memory import SYSTEM_FUNCTIONS
from quant.jit.functions import jit_function
from quant.jit.kernel import Kernel, arguments_type
from quant.jit.kernel_call import HEADER_WORDS
from quant.jit.linking import kernel_codegen, unoptimized_libraries
from quant.jit.vectors import load


def compile_kernel(kernel: Kernel) -> bytes:
    """Return the object file of a kernel. Raises TypeError under the same conditions as `compile_module`."""
    return bytes(target_machine().emit_object(compile_module(kernel)))


@cache
def target_machine() -> llvm.TargetMachine:
    """Return LLVM's code generator for this CPU: numba's, but with ELF object files on every system."""
    options: dict[str, Any] = {"opt": 3}
    kernel_codegen()._customize_tm_options(options)
    options["features"] = ",".join(filter(None, [options["features"], reserved_registers()]))
    return llvm.Target.from_triple(elf_triple()).create_target_machine(**options)


def compile_module(kernel: Kernel) -> llvm.ModuleRef:
    """Compile a kernel to optimized LLVM IR. Only its entry point has external linkage, so the symbols of two kernels
    cannot clash.

    Raises TypeError if the code reads an argument that `kernel.parameters` lacks, or if it calls functions other than
    `SYSTEM_FUNCTIONS`.
    """
    body = getattr(importlib.import_module(kernel.module), kernel.function)(**dict(kernel.constants))
    entry = jit_function(make_entry_function(jit_function(body), kernel))
    with unoptimized_libraries(), gc_paused():
        try:
            entry.compile((numba.int64,) * 4)
        except TypingError as error:
            unknown = re.search(r"Unknown attribute '(\w+)' of type Arguments", str(error))
            if unknown is None:
                raise
            raise TypeError(f"{kernel.module}:{kernel.function} has no argument {unknown[1]}") from error
    [result] = entry.overloads.values()
    module, symbol = result.library.linked(), kernel.symbol
    module.link_in(llvm.parse_assembly(ENTRY_TEMPLATE.format(native=result.fndesc.llvm_func_name, symbol=symbol)))
    for item in [*module.functions, *module.global_variables]:
        if item.name != symbol and not item.is_declaration:
            item.linkage = "private"  # unlike "internal", leaves no names in the object file
    module.triple, module.data_layout = elf_triple(), str(target_machine().target_data)
    optimize(module)
    foreign = {
        f.name for f in module.functions if f.is_declaration and not f.name.startswith("llvm.")
    } - SYSTEM_FUNCTIONS
    if foreign:
        raise TypeError(f"kernel {symbol} would call {', '.join(sorted(foreign))}")
    return module


@contextmanager
def gc_paused() -> Iterator[None]:
    """Disable Python's garbage collection. numba allocates so many objects that it would take a sixth of the compile
    time.
    """
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def make_entry_function(body: Any, kernel: Kernel) -> Any:
    """Return a function of (op, chunk_index, n_chunks, scratch) that loads the kernel's arguments from the op record
    and calls `body`.
    """
    loads = [
        f"load({'float64' if name in kernel.float_parameters else 'int64'}, op + {8 * (HEADER_WORDS + index)})"
        for index, name in enumerate(kernel.parameters)
    ]
    source = (
        "def make_entry(body, Arguments):\n"
        "    def entry(op, chunk_index, n_chunks, scratch):\n"
        f"        body(Arguments({', '.join(loads)}), chunk_index, n_chunks, scratch)\n"
        "    return entry\n"
    )
    scope: dict[str, Any] = {}
    exec(compile(source, "<entry>", "exec"), ENTRY_GLOBALS, scope)
    return scope["make_entry"](body, arguments_type(kernel.parameters))


ENTRY_GLOBALS = {"load": load, "int64": numba.int64, "float64": numba.float64}


# numba's functions return a status and a pointer to an exception. Kernels never raise, so the entry point drops both.
# Vectors that a kernel has to store on the stack would otherwise cross cache lines, depending on its caller: this made
# attention half as slow again.
ENTRY_TEMPLATE = """
declare i32 @"{native}"(ptr, ptr, i64, i64, i64, i64)
define void @"{symbol}"(i64 %op, i64 %chunk_index, i64 %n_chunks, i64 %scratch) alignstack(64) {{
  %result = alloca ptr
  %exception = alloca ptr
  call i32 @"{native}"(ptr %result, ptr %exception, i64 %op, i64 %chunk_index, i64 %n_chunks, i64 %scratch)
  ret void
}}
"""


def optimize(module: llvm.ModuleRef) -> None:
    """Run LLVM's optimization passes, including inlining but without auto-vectorization: kernels use
    explicit vectors.
    """
    tuning = llvm.create_pipeline_tuning_options(speed_level=3)
    tuning.loop_vectorization = tuning.slp_vectorization = False
    builder = llvm.create_pass_builder(target_machine(), tuning)
    builder.getModulePassManager().run(module, builder)


def main() -> None:
    """Compile each kernel read from stdin until end of input."""
    for line in sys.stdin:
        code = compile_kernel(Kernel.from_json(line))
        sys.stdout.write(base64.b64encode(code).decode() + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

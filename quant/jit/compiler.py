"""Kernels to object files: the only place that runs numba's compiler. As a program, it answers lines with lines.

python -m quant.jit.compiler        a kernel as JSON on each line of stdin, its object file in base64 on stdout
"""

import base64
import gc
import importlib
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import llvmlite.binding as llvm
import numba

from quant.jit.functions import alone
from quant.jit.kernel import Kernel
from quant.jit.linking import codegen_of_kernels, unfinished
from quant.jit.record import HEADER_WORDS
from quant.jit.vectors import load


def compile_kernel(kernel: Kernel) -> bytes:
    """The kernel's object file. Raises TypeError as `module_of` does."""
    return bytes(machine().emit_object(module_of(kernel)))


def machine() -> llvm.TargetMachine:
    """What makes machine code for this CPU."""
    return codegen_of_kernels()._tm


def module_of(kernel: Kernel) -> llvm.ModuleRef:
    """The kernel as optimized LLVM IR. Only its entry point is visible, so that no two kernels can clash.

    Raises TypeError when the plan's argument names are not those of the kernel, or when it needs more than memory and
    arithmetic.
    """
    body = getattr(importlib.import_module(kernel.module), kernel.function)(**dict(kernel.constants))
    expected = [*kernel.parameters, "part", "parts", "scratch"]
    if list(inspect.signature(body).parameters) != expected:
        raise TypeError(f"{kernel.module}:{kernel.function} takes {inspect.signature(body)}, not {expected}")
    entry = alone(entry_point(alone(body), kernel))
    with unfinished(), uncollected():
        entry.compile((numba.int64,) * 4)
    [result] = entry.overloads.values()
    module, symbol = result.library.linked(), kernel.symbol
    module.link_in(llvm.parse_assembly(ENTRY.format(native=result.fndesc.llvm_func_name, symbol=symbol)))
    for item in [*module.functions, *module.global_variables]:
        if item.name != symbol and not item.is_declaration:
            item.linkage = "internal"
    optimize(module)
    foreign = {f.name for f in module.functions if f.is_declaration and not f.name.startswith("llvm.")} - ALLOWED
    if foreign:
        raise TypeError(f"kernel {symbol} would call {', '.join(sorted(foreign))}")
    return module


@contextmanager
def uncollected() -> Iterator[None]:
    """Python does not look for garbage: numba makes so many objects that a sixth of the time would go into that."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def entry_point(body: Any, kernel: Kernel) -> Any:
    """A function of (op, part, parts, scratch) that reads the kernel's arguments from the op record."""
    reads = [
        f"load({'float64' if name in kernel.floats else 'int64'}, op + {8 * (HEADER_WORDS + index)})"
        for index, name in enumerate(kernel.parameters)
    ]
    source = f"def entry(op, part, parts, scratch):\n    body({', '.join([*reads, 'part', 'parts', 'scratch'])})\n"
    scope = {"body": body, "load": load, "int64": numba.int64, "float64": numba.float64}
    exec(compile(source, f"<entry of {kernel.function}>", "exec"), scope)
    return scope["entry"]


# What machine code may ask of the process that loads it: the C library, and nothing of Python or numba.
ALLOWED = {"memset", "memcpy", "memmove", "sched_yield"}

# numba's own functions return a status and where an exception lies; kernels raise nothing, so both are dropped.
ENTRY = """
declare i32 @"{native}"(ptr, ptr, i64, i64, i64, i64)
define void @"{symbol}"(i64 %op, i64 %part, i64 %parts, i64 %scratch) {{
  %result = alloca ptr
  %exception = alloca ptr
  call i32 @"{native}"(ptr %result, ptr %exception, i64 %op, i64 %part, i64 %parts, i64 %scratch)
  ret void
}}
"""


def optimize(module: llvm.ModuleRef) -> None:
    """Inline everything, and do all that LLVM can, but for making vectors: kernels are written in them."""
    tuning = llvm.create_pipeline_tuning_options(speed_level=3)
    tuning.loop_vectorization = tuning.slp_vectorization = False
    builder = llvm.create_pass_builder(machine(), tuning)
    builder.getModulePassManager().run(module, builder)


def main() -> None:
    """Answer until there are no more questions."""
    for line in sys.stdin:
        code = compile_kernel(Kernel.from_json(line))
        sys.stdout.write(base64.b64encode(code).decode() + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

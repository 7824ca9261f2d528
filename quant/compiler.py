"""Kernels to object files: the only place that runs numba's compiler. As a program, it answers lines with lines.

python -m quant.compiler        a kernel as JSON on each line of stdin, its object file in base64 on stdout
"""

import base64
import importlib
import inspect
import sys
from typing import Any

import llvmlite.binding as llvm
import numba

from quant.jit import Kernel
from quant.record import HEADER_WORDS
from quant.vectors import load


def compile_kernel(kernel: Kernel) -> bytes:
    """The kernel's object file.

    Raises TypeError when the plan's argument names are not those of the kernel.
    """
    body = getattr(importlib.import_module(kernel.module), kernel.function)(**dict(kernel.constants))
    expected = [*kernel.parameters, "part", "parts", "scratch"]
    if list(inspect.signature(body).parameters) != expected:
        raise TypeError(f"{kernel.module}:{kernel.function} takes {inspect.signature(body)}, not {expected}")
    entry = numba.njit(entry_point(numba.njit(error_model="numpy")(body), kernel), error_model="numpy")
    entry.compile((numba.int64,) * 4)
    [result] = entry.overloads.values()
    return emit_object(result, kernel.symbol)


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


def emit_object(result: Any, symbol: str) -> bytes:
    """One object file in which only the entry point is visible, so that no two files can clash.

    Raises TypeError when the kernel needs more than memory and arithmetic.
    """
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


def main() -> None:
    """Answer until there are no more questions."""
    for line in sys.stdin:
        code = compile_kernel(Kernel.from_json(line))
        sys.stdout.write(base64.b64encode(code).decode() + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

"""A pytest plugin: the tests' kernels are compiled for the operating system FOREIGN_TRIPLE, loaded and run on this one.

The CPU is the same, but the triple decides about the calling convention, the code model, and the functions of the
system that kernels call. On Windows these are different, so calls in both directions go through small functions that
translate.
"""

import ctypes
import os
from collections.abc import Callable

import llvmlite.binding as llvm
import pytest
from cross_target import set_triple

TRANSLATION_IR = """
declare i32 @sched_yield()
declare ptr @memset(ptr, i32, i64)
declare ptr @memcpy(ptr, ptr, i64)
declare ptr @memmove(ptr, ptr, i64)
define void @enter(i64 %address, i64 %op, i64 %chunk_index, i64 %n_chunks, i64 %scratch) {
  %kernel = inttoptr i64 %address to ptr
  call win64cc void %kernel(i64 %op, i64 %chunk_index, i64 %n_chunks, i64 %scratch)
  ret void
}
define win64cc i32 @windows_SwitchToThread() {
  %count = atomicrmw add ptr @yields, i64 1 seq_cst
  %result = call i32 @sched_yield()
  ret i32 %result
}
define win64cc ptr @windows_memset(ptr %to, i32 %value, i64 %size) {
  %result = call ptr @memset(ptr %to, i32 %value, i64 %size)
  ret ptr %result
}
define win64cc ptr @windows_memcpy(ptr %to, ptr %from, i64 %size) {
  %result = call ptr @memcpy(ptr %to, ptr %from, i64 %size)
  ret ptr %result
}
define win64cc ptr @windows_memmove(ptr %to, ptr %from, i64 %size) {
  %result = call ptr @memmove(ptr %to, ptr %from, i64 %size)
  ret ptr %result
}
@yields = global i64 0
; __chkstk touches the pages of a large stack frame, which Linux does not need, and changes no register.
define void @windows___chkstk() {
  ret void
}
"""


def compile_natively(code: str) -> llvm.ExecutionEngine:
    """Compile LLVM IR for this system, and return the engine that has loaded it."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(code), machine)
    engine.finalize_object()
    return engine


def translate_calls(engine: llvm.ExecutionEngine) -> None:
    """Let Python call kernels with the calling convention of Windows, and let these call functions of the system."""
    from quant.jit import executable_memory, kernel_call

    enter = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)(engine.get_function_address("enter"))

    def kernel_function(address: int) -> Callable[[int, int, int, int], None]:
        return lambda *arguments: enter(address, *arguments)

    def system_function(name: str) -> int:
        return engine.get_function_address(f"windows_{name}")

    kernel_call.KernelFunction = kernel_function  # type: ignore[assignment, misc]
    executable_memory.system_function = system_function  # type: ignore[assignment]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report how often kernels have called the function of Windows that yields the core."""
    yields = ctypes.c_int64.from_address(NATIVE.get_global_value_address("yields")).value
    terminalreporter.write_line(f"threads yielded {yields} times")


triple = os.environ["FOREIGN_TRIPLE"]
NATIVE = compile_natively(TRANSLATION_IR)
set_triple(triple)
if "windows" in triple:
    translate_calls(NATIVE)

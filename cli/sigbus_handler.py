"""SIGBUS handler: exit with a one-line error when a memory-mapped model file is truncated.

The kernel sends SIGBUS to the thread that reads a page beyond the end of the file. No Python code can run in that
situation, so the handler is compiled from LLVM IR. It calls `write` and `_exit` of the C library. If several threads
receive the signal at the same time, the first one reports the error and the others wait for the process to exit.
"""

import ctypes
import signal
import sys
from functools import cache
from typing import NamedTuple

HANDLER_IR = """
declare i64 @write(i32, ptr, i64)
declare void @_exit(i32)
@reported = internal global i32 0
@localinfer_sigbus_message = global ptr null
@localinfer_sigbus_length = global i64 0
define void @localinfer_handle_sigbus(i32 %signal) {
  %before = atomicrmw xchg ptr @reported, i32 1 seq_cst
  %first = icmp eq i32 %before, 0
  br i1 %first, label %report, label %wait
wait:
  %again = load volatile i32, ptr @reported
  br label %wait
report:
  %message = load ptr, ptr @localinfer_sigbus_message
  %length = load i64, ptr @localinfer_sigbus_length
  %written = call i64 @write(i32 2, ptr %message, i64 %length)
  call void @_exit(i32 1)
  unreachable
}
"""


class SigbusHandler(NamedTuple):
    """The compiled handler: its address, and the global variables with its message and the message's length."""

    address: int
    message: ctypes.c_void_p
    length: ctypes.c_int64


@cache
def compile_handler() -> SigbusHandler:
    """Compile the handler. Its machine code stays in memory until the process exits."""
    import llvmlite.binding as llvm

    from quant.jit import loader

    engine = loader.execution_engine()
    engine.add_module(llvm.parse_assembly(HANDLER_IR))
    engine.finalize_object()
    return SigbusHandler(
        engine.get_function_address("localinfer_handle_sigbus"),
        ctypes.c_void_p.from_address(engine.get_global_value_address("localinfer_sigbus_message")),
        ctypes.c_int64.from_address(engine.get_global_value_address("localinfer_sigbus_length")),
    )


@cache
def persistent_buffer(line: bytes) -> ctypes.Array[ctypes.c_char]:
    """Return `line` in a buffer that is never freed or moved."""
    return ctypes.create_string_buffer(line)


def install(path: str) -> None:
    """Install the handler: exit with code 1 and one line on stderr if the mapped file `path` is truncated."""
    if not hasattr(signal, "SIGBUS"):
        return
    start = "\n" if sys.stderr.isatty() else ""
    line = f"{start}error: {path}: file changed or truncated while in use\n".encode("utf-8", "replace")
    found = compile_handler()
    found.length.value = 0  # no partial message while it is replaced
    found.message.value = ctypes.addressof(persistent_buffer(line))
    found.length.value = len(line)
    set_handler = ctypes.CDLL(None).signal
    set_handler.argtypes, set_handler.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    set_handler(signal.SIGBUS, found.address)

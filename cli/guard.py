"""A model file that shrinks while it is mapped: one line instead of a death by signal.

The system answers a read of pages that are no longer in the file with SIGBUS, to the thread that computes. No Python
can run then, so the handler is two calls of the C library, compiled here: it says what happened and ends the process.
Several threads may meet it at the same time: the first one speaks, the others wait for the end.
"""

import ctypes
import signal
import sys
from functools import cache
from typing import NamedTuple

HANDLER = """
declare i64 @write(i32, ptr, i64)
declare void @_exit(i32)
@told = internal global i32 0
@localinfer_last_words = global ptr null
@localinfer_length = global i64 0
define void @localinfer_file_shrank(i32 %signal) {
  %before = atomicrmw xchg ptr @told, i32 1 seq_cst
  %first = icmp eq i32 %before, 0
  br i1 %first, label %tell, label %wait
wait:
  %again = load volatile i32, ptr @told
  br label %wait
tell:
  %words = load ptr, ptr @localinfer_last_words
  %length = load i64, ptr @localinfer_length
  %written = call i64 @write(i32 2, ptr %words, i64 %length)
  call void @_exit(i32 1)
  unreachable
}
"""


class Handler(NamedTuple):
    """Of the signal: its address, and where it looks for what it says, and for how many bytes that is."""

    address: int
    words: ctypes.c_void_p
    length: ctypes.c_int64


@cache
def handler() -> Handler:
    """Compiled once: machine code stays in memory until the process ends."""
    import llvmlite.binding as llvm

    from quant.jit import loader

    engine = loader.engine()
    engine.add_module(llvm.parse_assembly(HANDLER))
    engine.finalize_object()
    return Handler(
        engine.get_function_address("localinfer_file_shrank"),
        ctypes.c_void_p.from_address(engine.get_global_value_address("localinfer_last_words")),
        ctypes.c_int64.from_address(engine.get_global_value_address("localinfer_length")),
    )


@cache
def lasting(line: bytes) -> ctypes.Array[ctypes.c_char]:
    """It in memory that stays where it is."""
    return ctypes.create_string_buffer(line)


def against_shrinking(path: str) -> None:
    """From now on, end with exit code 1 and one line on stderr when the mapped file `path` is cut short."""
    if not hasattr(signal, "SIGBUS"):
        return
    start = "\n" if sys.stderr.isatty() else ""
    line = f"{start}error: {path}: file changed or truncated while in use\n".encode("utf-8", "replace")
    found = handler()
    found.length.value = 0  # rather nothing than half of it
    found.words.value = ctypes.addressof(lasting(line))
    found.length.value = len(line)
    install = ctypes.CDLL(None).signal
    install.argtypes, install.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    install(signal.SIGBUS, found.address)

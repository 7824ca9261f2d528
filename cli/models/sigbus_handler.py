"""SIGBUS handler: exit with a one-line error when a memory-mapped model file is truncated.

The kernel sends SIGBUS to the thread that reads a page beyond the end of the file. No Python code can run in that
situation, so the handler is compiled from LLVM IR. It calls `write` and `_exit` of the C library. If several threads
receive the signal at the same time, the first one reports the error and the others wait for the process to exit.
"""

import contextlib
import ctypes
import hashlib
import signal
import sys
from functools import cache

# Its data is a `Report`: the message, its length, and whether a thread reports it already.
HANDLER_IR = """
declare i64 @write(i32, ptr, i64)
declare void @_exit(i32)
@report = external global { ptr, i64, i32 }
define void @handle_sigbus(i32 %signal) {
  %before = atomicrmw xchg ptr getelementptr ({ ptr, i64, i32 }, ptr @report, i32 0, i32 2), i32 1 seq_cst
  %first = icmp eq i32 %before, 0
  br i1 %first, label %report, label %wait
wait:
  %again = load volatile i32, ptr @report
  br label %wait
report:
  %message = load ptr, ptr @report
  %length = load i64, ptr getelementptr ({ ptr, i64, i32 }, ptr @report, i32 0, i32 1)
  %written = call i64 @write(i32 2, ptr %message, i64 %length)
  call void @_exit(i32 1)
  unreachable
}
"""
SYMBOL = "handle_sigbus"
CACHE_NAME = f"{SYMBOL}_{hashlib.sha256(HANDLER_IR.encode()).hexdigest()[:16]}"


class Report(ctypes.Structure):
    """The data of the handler."""

    _fields_ = (("message", ctypes.c_void_p), ("length", ctypes.c_int64), ("reported", ctypes.c_int32))


REPORT = Report()


def address_of(name: str) -> int:
    """Return the address of what the handler does not define."""
    from quant.jit import executable_memory

    if name == "report":
        return ctypes.addressof(REPORT)
    return executable_memory.system_function(name, allowed=frozenset({"write", "_exit"}))


@cache
def load_handler() -> int:
    """Return the address of the handler, which is compiled unless the kernel cache has it."""
    from localinfer import paths
    from quant.jit import executable_memory
    from quant.jit.kernel_cache import KernelCache
    from quant.jit.object_file import ObjectFile, ObjectFileError

    files, parsed = KernelCache(paths.jit_dir()), None
    with contextlib.suppress(ObjectFileError):  # it is compiled again
        parsed = ObjectFile(files.read(CACHE_NAME) or b"", SYMBOL)
    if parsed is None:
        from quant.jit.ir import compile_ir

        code = compile_ir(HANDLER_IR)
        files.write(CACHE_NAME, code)
        parsed = ObjectFile(code, SYMBOL)
    [image] = executable_memory.load([parsed], address_of)
    return image + parsed.entry


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
    REPORT.length = 0  # no partial message while it is replaced
    REPORT.message = ctypes.addressof(persistent_buffer(line))
    REPORT.length = len(line)
    set_handler = ctypes.CDLL(None).signal
    set_handler.argtypes, set_handler.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    set_handler(signal.SIGBUS, load_handler())

"""A model file that shrinks while it is mapped: one line instead of a death by signal.

The system answers a read of pages that are no longer in the file with SIGBUS, to the thread that computes. No Python
can run then, so the handler is two calls of the C library, compiled here: it says what happened and ends the process.
Several threads may meet it at the same time: the first one speaks, the others wait for the end.
"""

import ctypes
import signal
import sys

HANDLER = """
declare i64 @write(i32, ptr, i64)
declare void @_exit(i32)
@told = internal global i32 0
@message = internal constant [{size} x i8] c"{text}"
define void @localinfer_file_shrank(i32 %signal) {{
  %before = atomicrmw xchg ptr @told, i32 1 seq_cst
  %first = icmp eq i32 %before, 0
  br i1 %first, label %tell, label %wait
wait:
  %again = load volatile i32, ptr @told
  br label %wait
tell:
  %written = call i64 @write(i32 2, ptr @message, i64 {size})
  call void @_exit(i32 1)
  unreachable
}}
"""


def against_shrinking(path: str) -> None:
    """From now on, end with exit code 1 and one line on stderr when the mapped file `path` is cut short."""
    if not hasattr(signal, "SIGBUS"):
        return
    import llvmlite.binding as llvm

    from quant.jit import loader

    start = "\n" if sys.stderr.isatty() else ""
    line = f"{start}error: {path}: file changed or truncated while in use\n".encode("utf-8", "replace")
    text = "".join(f"\\{byte:02x}" for byte in line)
    engine = loader.engine()
    engine.add_module(llvm.parse_assembly(HANDLER.format(size=len(line), text=text)))
    engine.finalize_object()
    handler = ctypes.c_void_p(engine.get_function_address("localinfer_file_shrank"))
    install = ctypes.CDLL(None).signal
    install.argtypes, install.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    install(signal.SIGBUS, handler)

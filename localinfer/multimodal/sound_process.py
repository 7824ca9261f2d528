"""Sounds are decoded in a child process, because the decoders are native code that reads untrusted files.

libmpg123 writes about damaged MP3 files to the process's stderr, and nothing can turn this off. The child's stderr is
closed, its memory and its time are limited, and a crash ends only the child.
"""

import signal
import sys

import numpy as np
from numpy.typing import NDArray

from localinfer.child_process import (
    limit_resources,
    limit_time,
    limited_memory,
    read_frame,
    start_child,
    terminate,
    write_frame,
)
from localinfer.errors import LocalInferError
from localinfer.escaping import printable

CODE = "from localinfer.multimodal.sound_process import main; main()"
PACKAGES = ("localinfer", "numpy", "soundfile", "_soundfile", "_soundfile_data", "soxr", "cffi", "_cffi_backend")
MAX_MEMORY = 2 << 30  # bytes of address space in addition to the file
MAX_BYTES = 1 << 30  # of a file
MAX_SECONDS = 120.0  # of CPU time; an hour of MP3 takes 10 s
SOUND, PROBLEM = b"S", b"P"


def decode_in_child(data: bytes, name: str) -> NDArray[np.float32]:
    """Return what `sound_decoding.decode` returns. Raises LocalInferError naming `name`."""
    require_readable_size(len(data), name)
    try:
        child = start_child(CODE, PACKAGES)
    except OSError as error:
        raise LocalInferError(f"{printable(name)}: cannot start a process to decode it: {error.strerror}") from None
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        with limited_memory(child, MAX_MEMORY + len(data)):
            write_frame(child.stdin, data)
            write_frame(child.stdin, name.encode("utf-8", "surrogatepass"))
            reply = read_frame(child.stdout)
    except (EOFError, OSError):
        raise LocalInferError(f"{printable(name)}: the sound is damaged: its decoder fails") from None
    finally:
        terminate(child)
    if reply[:1] == PROBLEM:
        raise LocalInferError(reply[1:].decode("utf-8", "replace"))
    return np.frombuffer(reply[1:], np.float32)


def require_readable_size(n_bytes: int, name: str) -> None:
    """Raise LocalInferError for a file that is larger than what is decoded."""
    if n_bytes > MAX_BYTES:
        raise LocalInferError(f"{printable(name)}: a sound file may have at most {MAX_BYTES >> 20} MiB")


def main() -> None:
    """Decode one sound in the child process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    data = read_frame(sys.stdin.buffer)
    name = read_frame(sys.stdin.buffer).decode("utf-8", "surrogatepass")
    limit_resources(MAX_MEMORY + len(data))
    limit_time(MAX_SECONDS)
    try:
        from localinfer.multimodal.sound_decoding import decode

        reply = decode(data, name).tobytes()
    except LocalInferError as error:
        write_frame(sys.stdout.buffer, PROBLEM, str(error).encode("utf-8", "replace"))
    else:
        write_frame(sys.stdout.buffer, SOUND, reply)

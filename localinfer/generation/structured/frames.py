"""Frames: how `worker.py` and `worker_process.py` communicate. A frame is a length of four bytes and so many bytes. Its
first byte is its kind, except in frames of the vocabulary."""

from typing import BinaryIO

REWRITE, COMPILE, BEGIN, TEXT, TOKEN, CHECK = b"S", b"C", b"B", b"X", b"T", b"K"  # kinds of requests
REPLY, QUESTION = b"R", b"Q"  # kinds of what a worker sends: its replies, and texts that it needs the token ids of
CONSUMED, STOPPED = 1, 2  # bits of a status
NO_TOKEN_ALLOWED = "NoExtensionBias"  # llguidance's failure if no token is allowed; its others are exceeded limits
INCOMPLETE = "it ends too early"  # a reply to CHECK


def write_frame(stream: BinaryIO, *parts: bytes) -> None:
    content = b"".join(parts)
    stream.write(len(content).to_bytes(4, "little") + content)
    stream.flush()


def read_frame(stream: BinaryIO) -> bytes:
    """Return the content of the next frame. Raises EOFError at the end of the stream."""
    size = stream.read(4)
    content = stream.read(int.from_bytes(size, "little"))
    if len(size) < 4 or len(content) < int.from_bytes(size, "little"):
        raise EOFError
    return content

"""The format of a file of the prefix store: arrays of bytes, and a digest of the file's name and contents.

The layout, little-endian: magic "LIPREFIX", length of the header u32, digest of everything else and of the name (XXH3,
16 bytes), the header (JSON; `sizes`: the bytes of each array of each cache), then the arrays.

The digest finds damage, no forgery: nobody else can write the files. A cryptographic one would take most of the time of
restoring a prompt.
"""

import contextlib
import json
import os
import struct
import threading
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from xxhash import xxh3_128

from localinfer.errors import LocalInferError
from localinfer.gguf.mapped_file import MappedFile
from localinfer.prefix_store.sequence_parts import Arrays
from localinfer.runtime.snapshot import split_arrays

MAGIC = b"LIPREFIX"
PREAMBLE = struct.Struct("<8sI16s")
CONTENT_ERRORS = LookupError, TypeError, ValueError, ArithmeticError, RecursionError


def write_entry(path: Path, arrays: Arrays) -> int:
    """Write a file, which appears when it is complete, readable by its owner only. Return its size. Raises OSError.

    It is not synced to the disk: a file that is torn by a power failure has another digest.
    """
    flat = [[array.reshape(-1).data for array in each] for each in arrays]
    header = json.dumps({"sizes": [[array.nbytes for array in each] for each in flat]}).encode()
    pieces: Sequence[bytes | memoryview] = [header, *chain.from_iterable(flat)]
    preamble = PREAMBLE.pack(MAGIC, len(header), digest_of(path.name, pieces))
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.writelines([preamble, *pieces])
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    return len(preamble) + sum(map(len, pieces))


def read_entry(path: Path) -> Arrays | None:
    """Return the arrays of a file as views of it, or None if it is missing, damaged or another file."""
    try:
        data = MappedFile(path).bytes
        magic, header_bytes, digest = PREAMBLE.unpack_from(data.data)
        content = data[PREAMBLE.size :]
        if magic != MAGIC or digest_of(path.name, [content.data]) != digest:
            return None
        sizes = json.loads(content[:header_bytes].tobytes())["sizes"]
        return split_arrays(content[header_bytes:], sizes)
    except (LocalInferError, struct.error, *CONTENT_ERRORS):
        return None


def digest_of(name: str, pieces: Sequence[bytes | memoryview]) -> bytes:
    """Return the digest of a file's name and contents."""
    digest = xxh3_128(name.encode())
    for piece in pieces:
        digest.update(piece)
    return digest.digest()

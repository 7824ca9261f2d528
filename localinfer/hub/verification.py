"""Verification of model files by the digests that their model stores name.

    verify(file, digest, name)         # reads the whole file
    verify_once(file, digest, name)    # not again, unless the file has changed

A file of another program is verified when it is used for the first time, because nobody has compared it with its digest
on this machine, or on this disk. Records of verified files are in `models/verified`, named by their digests.
"""

import hashlib
from contextlib import suppress
from pathlib import Path

from localinfer import paths
from localinfer.errors import LocalInferError
from localinfer.escaping import printable
from localinfer.gguf.atomic_file import atomic_files
from localinfer.hub.model_store import Progress

CHUNK_BYTES = 1 << 20
SHA1_DIGITS = 40  # git's SHA-1 of a blob; others are SHA-256


def verify(file: Path, digest: str, name: str, progress: Progress | None = None) -> None:
    """Compare a file with its digest, and record that it was verified. Raises LocalInferError if it is another one."""
    actual, identity = file_digest(file, digest, progress), identity_of(file)
    if actual != digest:
        kind = "git sha1" if len(digest) == SHA1_DIGITS else "sha256"
        raise LocalInferError(f"{name}: {printable(str(file))}: {kind} mismatch: expected {digest}, got {actual}")
    record = record_path(digest)
    with suppress(OSError, LocalInferError):  # without a record the file is verified again
        paths.private_directory(record.parent)
        with atomic_files({record: len(identity)}, replace=True) as [written]:
            written.write_at(0, identity)


def verify_once(file: Path, digest: str, name: str) -> None:
    """Verify a file, unless it was verified before and has not changed since. Raises LocalInferError."""
    record = record_path(digest)
    with suppress(OSError):
        if record.is_file() and record.read_bytes() == identity_of(file):
            return
    verify(file, digest, name)


def file_digest(file: Path, known: str, progress: Progress | None = None) -> str:
    """Return the digest of a file, of the same kind as the known one. Raises LocalInferError if it cannot be read."""
    done = 0
    try:
        size = file.stat().st_size
        is_git = len(known) == SHA1_DIGITS
        digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False) if is_git else hashlib.sha256()
        with file.open("rb") as opened:
            while chunk := opened.read(CHUNK_BYTES):
                digest.update(chunk)
                done += len(chunk)
                if progress:
                    progress("verify", done, size)
    except OSError as error:
        raise LocalInferError(f"{printable(str(file))}: {error.strerror}") from None
    return digest.hexdigest()


def record_path(digest: str) -> Path:
    """Return the path of the record of a verified file."""
    return paths.models_dir() / "verified" / digest


def identity_of(file: Path) -> bytes:
    """Return what changes when a file is written: path, inode, size and time of modification. Raises OSError."""
    status = file.stat()
    return repr((str(file), status.st_ino, status.st_size, status.st_mtime_ns)).encode("utf-8", "surrogateescape")

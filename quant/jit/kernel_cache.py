"""Machine code that is kept: kernels as plain object files.

A cached kernel is an object file behind the SHA-256 of its name and itself, so one that is damaged, or another's, is
noticed and compiled again; the directory's name holds a hash of everything that machine code depends on (the kernel
sources, the versions, the CPU), so an old one is never found. What is no longer used is removed when a new one is made.
"""

import contextlib
import hashlib
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from quant.jit import cpu
from quant.jit.kernel import Kernel

DIGEST_BYTES = 32
KEPT = 8  # directories of other versions and CPUs ...
KEPT_SECONDS = 7 * 24 * 3600  # ... and all that were used so lately, by another checkout or another machine


@cache
def sources_digest() -> str:
    """A hash of every file that a kernel's machine code can come from."""
    digest = hashlib.sha256()
    quant = Path(__file__).parents[1]
    for folder in (quant, quant.parent / "localinfer" / "ops"):
        for path in sorted([*folder.rglob("*.py"), *folder.rglob("*.npz")]):
            digest.update(path.relative_to(quant.parent).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def cache_key() -> str:
    """The name of the directory for kernels of this program, this stack and this CPU."""
    parts = [sources_digest(), version("numba"), version("llvmlite"), sys.version, cpu.identity()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def version(package: str) -> str:
    """The file in which a package keeps its version: neither numba nor importlib.metadata has to be imported for it."""
    spec = find_spec(package)
    assert spec is not None  # it is a dependency
    assert spec.origin is not None
    return Path(spec.origin).with_name("_version.py").read_text(encoding="utf-8")


class Cache:
    """Object files in a private directory; every failure to read or write one only costs a compilation."""

    def __init__(self, root: Path | None) -> None:
        self.warnings: list[str] = []
        self.directory = self._private(root / cache_key()) if root else None

    def _private(self, directory: Path) -> Path | None:
        """Machine code is only taken from a directory that nobody else can write to."""
        new = not directory.exists()
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in (directory, directory.parent):
                info = folder.stat()
                mine = not hasattr(os, "getuid") or info.st_uid == os.getuid()
                if not mine or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                    self.warnings.append(f"{folder}: kernel cache not used: others can write to it")
                    return None
        except OSError as error:
            self.warnings.append(f"{directory}: kernel cache not used: {error.strerror}")
            return None
        with contextlib.suppress(OSError):
            os.utime(directory)  # says when it was last used
        if new:
            remove_unused(directory.parent)
        return directory

    def read(self, kernel: Kernel) -> bytes | None:
        """The object file, if it is there and whole."""
        if self.directory is None:
            return None
        path = self.directory / f"{kernel.symbol}.o"
        try:
            content = path.read_bytes() if path.is_file() else b""  # a pipe would make us wait
        except OSError:
            return None
        digest, code = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
        # What defines no such symbol is not given to LLVM, which takes whatever it gets for an object file.
        return code if digest_of(kernel, code) == digest and kernel.symbol.encode() in code else None

    def write(self, kernel: Kernel, code: bytes) -> None:
        """Keep an object file: complete or not at all, whoever else writes it meanwhile."""
        if self.directory is None:
            return
        temporary = None
        try:
            handle, temporary = tempfile.mkstemp(dir=self.directory, prefix=".writing-")
            with os.fdopen(handle, "wb") as file:
                file.write(digest_of(kernel, code) + code)
            Path(temporary).replace(self.directory / f"{kernel.symbol}.o")
        except OSError as error:
            self.warnings.append(f"{self.directory}: kernel cache not written: {error.strerror}")
            self.directory = None
            if temporary is not None:
                Path(temporary).unlink(missing_ok=True)


def digest_of(kernel: Kernel, code: bytes) -> bytes:
    """What a cached object file begins with."""
    return hashlib.sha256(kernel.symbol.encode() + b"\0" + code).digest()


def generations(root: Path) -> list[Path]:
    """The directories of all versions and CPUs, the one that was used last first."""
    try:
        folders = [path for path in root.iterdir() if re.fullmatch("[0-9a-f]{24}", path.name) and not path.is_symlink()]
        return sorted(folders, key=lambda path: -path.stat().st_mtime)
    except OSError:  # not there, not ours to read, or another process removes some
        return []


def remove_unused(root: Path) -> None:
    """Remove what nobody has used lately. A process that still does would compile again."""
    for folder in generations(root)[KEPT:]:
        with contextlib.suppress(OSError):
            if folder.stat().st_mtime < time.time() - KEPT_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)

"""The kernel cache: compiled kernels as object files on disk.

A cache file is a SHA-256 digest of the kernel's symbol and object code, followed by the object code. Damaged or
misplaced files fail the digest check and are compiled again. The name of the cache directory is a hash of everything
that machine code depends on: the kernel sources, the versions of numba, llvmlite and Python, and the CPU. Outdated
kernels are therefore never found. Unused directories are removed when a new one is created.
"""

import contextlib
import hashlib
import os
import re
import shutil
import sys
import time
from functools import cache
from pathlib import Path

from quant.jit import cpu
from quant.jit.cpu_record import package_version
from quant.jit.files import is_private, replace_file

DIGEST_BYTES = 32
MAX_OLD_DIRECTORIES = 8  # of directories of other versions and CPUs that are kept
MIN_UNUSED_SECONDS = 7 * 24 * 3600  # directories used more recently are always kept: another checkout may use them


@cache
def sources_digest() -> str:
    """Return a hash of all source files that kernels are compiled from."""
    digest = hashlib.sha256()
    quant = Path(__file__).parents[1]
    for folder in (quant, quant.parent / "localinfer" / "kernels"):
        for path in sorted([*folder.rglob("*.py"), *folder.rglob("*.npz")]):
            digest.update(path.relative_to(quant.parent).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def cache_key() -> str:
    """Return the directory name for kernels of this source version, these libraries and this CPU."""
    parts = [sources_digest(), package_version("numba"), package_version("llvmlite"), sys.version, cpu.identity()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


class KernelCache:
    """Object files in a private directory. A failed read or write never raises; it only costs a compilation."""

    def __init__(self, root: Path | None) -> None:
        self.warnings: list[str] = []
        self.directory = self._open_private(root / cache_key()) if root else None

    def _open_private(self, directory: Path) -> Path | None:
        """Create the directory, and return it unless other users can write to it: machine code from others is not
        trusted.
        """
        new = not directory.exists()
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in (directory, directory.parent):
                if not is_private(folder):
                    self.warnings.append(f"{folder}: kernel cache not used: others can write to it")
                    return None
        except OSError as error:
            self.warnings.append(f"{directory}: kernel cache not used: {error.strerror}")
            return None
        with contextlib.suppress(OSError):
            os.utime(directory)  # the modification time records the last use
        if new:
            remove_old_directories(directory.parent)
        return directory

    def read(self, symbol: str) -> bytes | None:
        """Return the object file that defines a symbol, or None if it is missing or damaged."""
        if self.directory is None:
            return None
        path = self.directory / f"{symbol}.o"
        try:
            content = path.read_bytes() if path.is_file() else b""  # reading a pipe would block
        except OSError:
            return None
        digest, code = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
        return code if entry_digest(symbol, code) == digest else None

    def write(self, symbol: str, code: bytes) -> None:
        """Store an object file atomically. Concurrent writers do not disturb each other."""
        if self.directory is None:
            return
        path = self.directory / f"{symbol}.o"
        try:
            replace_file(path, entry_digest(symbol, code) + code)
        except OSError as error:
            if sys.platform == "win32" and isinstance(error, PermissionError) and path.is_file():
                return  # Windows replaces no file that another process reads, which then finds the same kernel there
            self.warnings.append(f"{self.directory}: kernel cache not written: {error.strerror}")
            self.directory = None


def entry_digest(symbol: str, code: bytes) -> bytes:
    """Return the digest at the beginning of a cache file."""
    return hashlib.sha256(symbol.encode() + b"\0" + code).digest()


def cache_directories(root: Path) -> list[Path]:
    """Return the cache directories of all versions and CPUs, the most recently used first."""
    try:
        folders = [path for path in root.iterdir() if re.fullmatch("[0-9a-f]{24}", path.name) and not path.is_symlink()]
        return sorted(folders, key=lambda path: -path.stat().st_mtime)
    except OSError:  # missing, unreadable, or being removed by another process
        return []


def remove_old_directories(root: Path) -> None:
    """Remove directories that have not been used lately. A process that still uses one compiles again."""
    for folder in cache_directories(root)[MAX_OLD_DIRECTORIES:]:
        with contextlib.suppress(OSError):
            if folder.stat().st_mtime < time.time() - MIN_UNUSED_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)

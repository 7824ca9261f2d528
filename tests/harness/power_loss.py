"""Simulated power failures: what a disk may hold after one, at every moment of a recorded run.

    with Disk(folder) as disk:
        ...                                        # writes, syncs and renames files in the folder
    for after in disk.crashes(random.Random(0)):
        after.restore(other_folder)                # the files that a power failure at this moment may leave

What was synced survives. Of the rest, a disk keeps anything: writes are lost in any combination, a file may have its
new size without its new content (zeros), and names are changed in order, up to any point. Directories are not
recorded; they exist in every state.
"""

import _pyio
import builtins
import io
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self


class Write(NamedTuple):
    """Bytes that are written at an offset of a file, or with `data` = None its new size."""

    offset: int
    data: bytes | None


@dataclass
class RecordedFile:
    writes: list[Write] = field(default_factory=list)
    synced: int = 0  # the number of writes that are on disk
    size: int = 0


class Rename(NamedTuple):
    """A change of the directory: `path` refers to a file from now on, or to none."""

    path: str
    file: int | None


class Crash(NamedTuple):
    """The contents of all files after a power failure, by path relative to the folder."""

    files: dict[str, bytes]
    moment: int  # the number of recorded operations before it

    def restore(self, folder: Path) -> Path:
        """Write the files to another folder, and return it."""
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return folder


class Disk:
    """Records the operations on files in a folder, within a with block."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.files: list[RecordedFile] = []
        self.names: dict[str, int] = {}
        self.renames: list[Rename] = []
        self.synced_renames = 0
        self.open: dict[int, int | None] = {}  # descriptor -> file, or None for a directory
        self.moments: list[tuple[int, int, list[tuple[int, int]]]] = []
        self.original: dict[tuple[Any, str], Any] = {}

    # --- recording ---

    def __enter__(self) -> Self:
        for name in ("open", "close", "write", "pwrite", "ftruncate", "fsync", "replace", "unlink"):
            self.patch(os, name, self.recorder(name))
        for module in (io, builtins):
            self.patch(module, "open", _pyio.open)  # which calls the functions of os
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for (module, name), function in self.original.items():
            setattr(module, name, function)

    def patch(self, module: Any, name: str, function: Any) -> None:
        self.original[module, name] = getattr(module, name)
        setattr(module, name, function)

    def recorder(self, name: str) -> Callable[..., Any]:
        """Return a function of `os` that is recorded."""
        function, after = getattr(os, name), getattr(self, f"after_{name}")

        def recorded(*arguments: Any, **keywords: Any) -> Any:
            before = self.place_of(arguments[0]) if name == "write" else None
            result = function(*arguments, **keywords)
            after(result, *(arguments if before is None else (*arguments, before)))
            return result

        return recorded

    def place_of(self, descriptor: int) -> int:
        """Return the offset of the next write. Files are opened for appending, or by Python, which writes in order."""
        file = self.open.get(descriptor)
        return 0 if file is None else self.files[file].size

    def relative(self, path: Any) -> str | None:
        name = os.fspath(path) if not isinstance(path, int) else ""
        return os.path.relpath(name, self.folder) if str(name).startswith(self.folder) else None

    def after_open(self, descriptor: int, path: Any, flags: int = 0, *_: Any) -> None:
        name = self.relative(path)
        if name is None:
            return
        if os.path.isdir(path):  # noqa: PTH112
            self.open[descriptor] = None
            return
        if name not in self.names:
            self.names[name] = len(self.files)
            self.files.append(RecordedFile())
            self.renames.append(Rename(name, self.names[name]))
        self.open[descriptor] = self.names[name]
        if flags & os.O_TRUNC:
            self.add(self.names[name], Write(0, None))

    def after_close(self, _: None, descriptor: int) -> None:
        self.open.pop(descriptor, None)

    def after_write(self, written: int, descriptor: int, data: Any, offset: int) -> None:
        self.after_pwrite(written, descriptor, data, offset)

    def after_pwrite(self, written: int, descriptor: int, data: Any, offset: int) -> None:
        if (file := self.open.get(descriptor)) is not None:
            self.add(file, Write(offset, bytes(data)[:written]))

    def after_ftruncate(self, _: None, descriptor: int, size: int) -> None:
        if (file := self.open.get(descriptor)) is not None:
            self.add(file, Write(size, None))

    def add(self, file: int, write: Write) -> None:
        recorded = self.files[file]
        recorded.writes.append(write)
        recorded.size = write.offset if write.data is None else max(recorded.size, write.offset + len(write.data))
        self.remember()

    def after_fsync(self, _: None, descriptor: int) -> None:
        if descriptor not in self.open:
            return
        file = self.open[descriptor]
        if file is None:
            self.synced_renames = len(self.renames)
        else:
            self.files[file].synced = len(self.files[file].writes)
        self.remember()

    def after_replace(self, _: None, source: Any, target: Any) -> None:
        old, new = self.relative(source), self.relative(target)
        if old is not None and new is not None:
            self.names[new] = self.names.pop(old)
            self.renames += [Rename(new, self.names[new]), Rename(old, None)]
            self.remember()

    def after_unlink(self, _: None, path: Any, **__: Any) -> None:
        name = self.relative(path)
        if name is not None and self.names.pop(name, None) is not None:
            self.renames.append(Rename(name, None))
            self.remember()

    def remember(self) -> None:
        """Remember what is written and synced at this moment."""
        states = [(file.synced, len(file.writes)) for file in self.files]
        self.moments.append((self.synced_renames, len(self.renames), states))

    # --- power failures ---

    def crashes(self, choose: random.Random, variants: int = 4) -> Iterator[Crash]:
        """Yield what the disk may hold after a power failure, at each moment: nothing but what was synced, all, new
        sizes with old content, and random combinations."""
        for moment, (first, last, states) in enumerate(self.moments):
            for variant in range(variants):
                n_renames = (first, last, last)[variant] if variant < 3 else choose.randint(first, last)
                names: dict[str, int] = {}
                for path, file in self.renames[:n_renames]:
                    if file is None:
                        names.pop(path, None)
                    else:
                        names[path] = file
                contents = {path: self.content(file, *states[file], variant, choose) for path, file in names.items()}
                yield Crash(contents, moment)

    def content(self, file: int, synced: int, written: int, variant: int, choose: random.Random) -> bytes:
        """Return what remains of a file of which the first `synced` of `written` writes are on disk."""
        content = bytearray()
        for number, (offset, data) in enumerate(self.files[file].writes[:written]):
            kept = number < synced or (False, True, False)[variant] if variant < 3 else choose.random() < 0.5
            kept = kept or number < synced
            if not kept and (variant == 0 or (variant > 2 and choose.random() < 0.5)):
                continue  # neither the content nor the size
            size = offset if data is None else max(len(content), offset + len(data))
            content = content[:size] + bytes(max(0, size - len(content)))
            if data is not None and kept:
                content[offset : offset + len(data)] = data
        return bytes(content)

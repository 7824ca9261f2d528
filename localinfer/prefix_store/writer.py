"""The thread that writes the files of the prefix store.

Copying and writing take processor time from the model's threads: one or two percent of a short answer. What was stored
before an answer is therefore copied and written after it, unless the answer takes longer.
"""

import contextlib
import queue
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from localinfer.prefix_store.directory import trim
from localinfer.prefix_store.entry_file import write_entry
from localinfer.prefix_store.sequence_parts import Arrays

MAX_WAITING_BYTES = 1 << 30  # with more, nothing else is stored
MAX_DELAYED_BYTES = 256 << 20  # with more, writing does not wait for the end of an answer
MAX_DELAY = 10.0  # seconds that writing waits for the end of an answer
MIN_FREE_BYTES = 1 << 30  # of the disk, which the store leaves to others
TRIM_INTERVAL = 64 << 20  # bytes written between two checks of the total size
CLOSE_SECONDS = 30.0


class Contents(NamedTuple):
    """What is written to a file: its size in bytes, and a function that returns it, which is called once."""

    nbytes: int
    arrays: Callable[[], Arrays]


class Writer:
    """Writes files in the background, and keeps the size of all files below `max_bytes`.

    After an error, such as a full disk, `problem` says what it was, and nothing more is written.
    """

    def __init__(self, root: Path, max_bytes: int) -> None:
        self._root, self._max_bytes = root, max_bytes
        self._queue: queue.SimpleQueue[tuple[float, Path, Contents] | None] = queue.SimpleQueue()
        self._condition = threading.Condition()
        self._released = 0.0  # what was queued until then is written at once
        self._waiting: set[Path] = set()
        self._waiting_bytes = 0
        self._since_trim = TRIM_INTERVAL  # at the first file, too: another program may have left too much
        self._thread: threading.Thread | None = None
        self.problem = ""

    def accepts(self, path: Path) -> bool:
        """Return whether a file can be written: not if it is waiting, or too many bytes are."""
        with self._condition:
            return not self.problem and path not in self._waiting and self._waiting_bytes < MAX_WAITING_BYTES

    def waiting_names(self) -> set[str]:
        """Return the names of the files that are written soon."""
        with self._condition:
            return {path.name for path in self._waiting}

    def write(self, path: Path, contents: Contents) -> None:
        """Write a file after the current answer, or soon."""
        with self._condition:  # so that a `release` after this one is later than the time
            self._waiting.add(path)
            self._waiting_bytes += contents.nbytes
            self._queue.put((monotonic(), path, contents))
            if self._waiting_bytes > MAX_DELAYED_BYTES:
                self._condition.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="prefix-store", daemon=True)
                self._thread.start()

    def release(self) -> None:
        """Write what waits for the end of an answer."""
        with self._condition:
            self._released = monotonic()
            self._condition.notify_all()

    def wait(self) -> None:
        """Write everything that waits, at most CLOSE_SECONDS long, and end the thread."""
        self.release()
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while item := self._queue.get():
            queued, path, contents = item
            self._wait_until_due(queued)
            try:
                self._write(path, contents)
            except OSError as error:
                self.problem = f"{path.parent}: {error.strerror or error}"
            finally:
                with self._condition:
                    self._waiting.discard(path)
                    self._waiting_bytes -= contents.nbytes
        self._trim()

    def _wait_until_due(self, queued: float) -> None:
        """Wait until what was queued at this time may be written."""

        def is_due() -> bool:
            return self._released >= queued or self._waiting_bytes > MAX_DELAYED_BYTES

        with self._condition:
            self._condition.wait_for(is_due, max(0.0, queued + MAX_DELAY - monotonic()))

    def _write(self, path: Path, contents: Contents) -> None:
        arrays = contents.arrays()  # in any case: until then, pages of the KV cache are held
        if self.problem or path.exists():
            return
        if shutil.disk_usage(path.parent).free < contents.nbytes + MIN_FREE_BYTES:
            trim(self._root, self._max_bytes // 2)
        if shutil.disk_usage(path.parent).free < contents.nbytes + MIN_FREE_BYTES:
            self.problem = f"{path.parent}: less than {MIN_FREE_BYTES >> 30} GiB are free"
            return
        self._since_trim += write_entry(path, arrays)
        if self._since_trim >= TRIM_INTERVAL:
            self._trim()

    def _trim(self) -> None:
        """Remove what is too much."""
        self._since_trim = 0
        with contextlib.suppress(OSError):
            trim(self._root, self._max_bytes)

"""Worker processes: the parent's side of `worker.py`."""

import signal
import threading
import weakref
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from time import monotonic
from typing import BinaryIO, TypeVar, cast

from localinfer.child_process import (
    HAS_CPU_TIMER,
    Child,
    limited_memory,
    read_frame,
    start_child,
    terminate,
    write_frame,
)
from localinfer.errors import ConstraintError, LocalInferError

from .frames import QUESTION

CODE = "from localinfer.generation.structured.worker import main; main()"
PACKAGES = (
    "localinfer", "llguidance", "jsonschema", "jsonschema_specifications", "referencing", "rpds", "attr", "attrs",
    "typing_extensions",
)  # fmt: skip
POLL_SECONDS = 0.05  # how often a waiting thread looks for reasons to stop
MAX_WALL_SECONDS = 60.0 if HAS_CPU_TIMER else 10.0  # of one request; the worker limits its CPU time to less
MAX_RESIDENT = 1 << 30  # bytes of memory of a worker, on systems where it cannot limit them itself
RELEASE_SECONDS = 0.1  # that a worker may still need for its last mask
MAX_IDLE = 4  # workers that are kept for later constraints

T = TypeVar("T")


class WorkerProcess:
    """A child process that serves one constraint at a time. Its requests are sent and answered in a thread."""

    def __init__(self, vocabulary: Sequence[bytes], encode: Callable[[bytes], list[int]]) -> None:
        """`vocabulary` are the first frames, `encode` returns the token ids of a text.

        Raises LocalInferError if no process can be started.
        """
        try:
            self._child = start_child(CODE, PACKAGES)
        except OSError as error:
            raise LocalInferError(f"cannot start a process for structured output: {error.strerror}") from None
        self._pipes = WorkerPipes(self._child, encode)  # the thread must not refer to this object
        self._thread = ThreadPoolExecutor(1, "constraint")
        self.terminate = weakref.finalize(self, end, self._child, self._thread)
        self._last: Future[object]  # the last request
        self._submit(self._pipes.send_all, vocabulary)

    def is_idle(self, seconds: float = 0.0) -> bool:
        """Return whether the worker lives and has answered everything, or does so within this time."""
        wait([self._last], seconds)
        is_alive = self.terminate.alive and self._child.poll() is None
        return is_alive and self._last.done() and self._last.exception() is None

    def request(self, kind: bytes, content: bytes = b"") -> "Future[bytes]":
        """Send a request, and return the future of the first frame of the reply."""
        return self._submit(self._pipes.exchange, kind, content)

    def next_frames(self, count: int) -> "Future[list[bytes]]":
        """Return the future of the next frames of a reply."""
        return self._submit(self._pipes.read, count)

    def wait(self, future: "Future[T]", on_wait: Callable[[], None], name: str) -> T:
        """Return the result of a request. Meanwhile `on_wait` is called several times a second; it may raise.

        Raises ConstraintError if the worker exceeds its limits. The worker is killed after any exception.
        """
        deadline = monotonic() + MAX_WALL_SECONDS
        try:
            while True:
                with suppress(TimeoutError):
                    return future.result(POLL_SECONDS)
                on_wait()
                if monotonic() > deadline:
                    raise ConstraintError(f"{name}: too complex: it took too long")
        except (EOFError, OSError):
            code = self._child.wait()
            self.terminate()
            is_late = code == -getattr(signal, "SIGPROF", 0)
            reason = "it took too long" if is_late else "it needs too much memory or stack"
            raise ConstraintError(f"{name}: too complex: {reason}") from None
        except BaseException:
            self.terminate()
            raise

    def _submit(self, function: Callable[..., T], *arguments: object) -> "Future[T]":
        future = self._thread.submit(function, *arguments)
        self._last = cast("Future[object]", future)
        return future


class WorkerPipes:
    """The pipes of a worker, which one thread uses."""

    def __init__(self, child: Child, encode: Callable[[bytes], list[int]]) -> None:
        assert child.stdin
        assert child.stdout
        self._child, self._encode = child, encode
        self._requests, self._replies = cast("BinaryIO", child.stdin), cast("BinaryIO", child.stdout)

    def send_all(self, frames: Sequence[bytes]) -> None:
        for frame in frames:
            write_frame(self._requests, frame)

    def exchange(self, kind: bytes, content: bytes) -> bytes:
        with limited_memory(self._child, MAX_RESIDENT):
            write_frame(self._requests, kind, content)
            return self._read_reply()

    def read(self, count: int) -> list[bytes]:
        return [self._read_reply() for _ in range(count)]

    def _read_reply(self) -> bytes:
        """Return the next frame that is a reply, and answer questions before it."""
        while (frame := read_frame(self._replies))[:1] == QUESTION:
            write_frame(self._requests, array("I", self._encode(frame[1:])).tobytes())
        return frame[1:]


def end(child: Child, thread: ThreadPoolExecutor) -> None:
    """Kill the child, which also ends the reads of the thread. Its gigabytes may take a second to be freed: the caller
    does not wait for that.
    """
    child.kill()

    def clean_up() -> None:
        thread.shutdown(wait=True)  # a pipe must not be closed while it is read
        terminate(child)

    try:
        threading.Thread(target=clean_up, daemon=True).start()
    except RuntimeError:  # the interpreter is shutting down
        clean_up()


class WorkerPool:
    """The workers of one vocabulary. Threads may call the methods."""

    def __init__(self, start: Callable[[], WorkerProcess]) -> None:
        self._start, self._idle, self._is_closed = start, list[WorkerProcess](), False
        self._lock = threading.Lock()  # no worker is kept once the pool is closed

    def acquire(self) -> WorkerProcess:
        """Return an idle worker, or a new one."""
        with suppress(IndexError):
            while not (worker := self._idle.pop()).is_idle():
                worker.terminate()
            return worker
        return self._start()

    def release(self, worker: WorkerProcess) -> None:
        """Keep an idle worker for later constraints; end one that is busy."""
        is_idle = worker.is_idle(RELEASE_SECONDS)
        with self._lock:
            is_kept = is_idle and len(self._idle) < MAX_IDLE and not self._is_closed
            if is_kept:
                self._idle.append(worker)
        if not is_kept:
            worker.terminate()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        while self._idle:
            self._idle.pop().terminate()

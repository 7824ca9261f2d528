"""A tool as a process: COMMAND NAME, with the arguments as JSON on stdin; what it writes to stdout is the result."""

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
from typing import IO

OUTPUT_LIMIT = 32_000  # bytes of each stream; what is more is counted, and not kept
LINGER = 1.0  # seconds in which a process that has ended may leave others behind that still write


def run(command: list[str], name: str, arguments: str, seconds: float) -> str:
    """The result, be it the news that the tool failed: a model is told, too. Ctrl-C ends the tool and is raised."""
    with tempfile.TemporaryFile() as stdin:  # a tool that does not read it cannot make anyone wait
        stdin.write(arguments.encode("utf-8", "replace"))
        stdin.seek(0)
        pipe = subprocess.PIPE
        try:
            # In a group of its own: the tool ends with all that it has started.
            process = subprocess.Popen([*command, name], stdin=stdin, stdout=pipe, stderr=pipe, start_new_session=True)
        except (OSError, ValueError) as error:
            return f"error: {command[0]} cannot be run: {getattr(error, 'strerror', None) or error}"
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        streams = Drain(process.stdout), Drain(process.stderr)
        try:
            code: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            for stream in streams:
                stream.join(LINGER if process.poll() is not None else 0)
            end(process)
            for stream in streams:
                stream.join()
    output, errors = (stream.text() for stream in streams)
    if code == 0:
        return output
    what = f"error: no result within {seconds:g} s" if code is None else f"error: exit code {code}"
    return "\n".join(filter(None, [what, output, errors]))


def end(process: "subprocess.Popen[bytes]") -> None:
    """The process and its group, as far as they are still there."""
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


class Drain(threading.Thread):
    """Reads a stream to its end, and keeps its beginning."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(daemon=True)
        self._stream = stream
        self._kept = bytearray()
        self._size = 0
        self.start()

    def run(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while chunk := os.read(self._stream.fileno(), 1 << 16):
                self._kept += chunk[: OUTPUT_LIMIT - len(self._kept)]
                self._size += len(chunk)

    def text(self) -> str:
        text = self._kept.decode("utf-8", "replace").rstrip("\r\n")
        return text if self._size <= OUTPUT_LIMIT else f"{text}\n[cut: {self._size:,} bytes in all]"

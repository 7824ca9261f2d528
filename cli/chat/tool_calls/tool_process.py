"""Tool execution as a subprocess: COMMAND NAME, with the arguments as JSON on stdin and the result on stdout."""

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
from typing import IO

OUTPUT_LIMIT = 32_000  # bytes of each stream; the rest is only counted
DRAIN_SECONDS = 1.0  # seconds to wait for output of child processes after the tool has exited


def run(command: list[str], name: str, arguments: str, seconds: float) -> str:
    """Run a tool and return its result, or an error message for the model if it fails.

    `seconds` is the time limit. Ctrl-C kills the tool and raises KeyboardInterrupt.
    """
    with tempfile.TemporaryFile() as stdin:  # a file, so that a tool that does not read it cannot block
        stdin.write(arguments.encode("utf-8", "replace"))
        stdin.seek(0)
        pipe = subprocess.PIPE
        try:
            # In its own process group, so that its child processes are killed with it.
            process = subprocess.Popen([*command, name], stdin=stdin, stdout=pipe, stderr=pipe, start_new_session=True)
        except (OSError, ValueError) as error:
            return f"error: {command[0]} cannot be run: {getattr(error, 'strerror', None) or error}"
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        streams = StreamReader(process.stdout), StreamReader(process.stderr)
        try:
            code: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            for stream in streams:
                stream.join(DRAIN_SECONDS if process.poll() is not None else 0)
            kill_process_group(process)
            for stream in streams:
                stream.join()
    output, errors = (stream.text() for stream in streams)
    if code == 0:
        return output
    what = f"error: no result within {seconds:g} s" if code is None else f"error: exit code {code}"
    return "\n".join(filter(None, [what, output, errors]))


def kill_process_group(process: "subprocess.Popen[bytes]") -> None:
    """Kill the process and its process group, if they still run.

    Windows has no such groups: child processes are killed as long as their parent runs.
    """
    if hasattr(os, "killpg"):
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        return
    import psutil  # imported late: other systems do not need it

    children: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        children = psutil.Process(process.pid).children(recursive=True)
    for child in children:
        with contextlib.suppress(psutil.Error):  # it has ended, or belongs to another user
            child.kill()
    process.kill()


class StreamReader(threading.Thread):
    """A thread that reads a stream to its end and keeps the first OUTPUT_LIMIT bytes."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(daemon=True)
        self._stream = stream
        self._data = bytearray()
        self._size = 0
        self.start()

    def run(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while chunk := os.read(self._stream.fileno(), 1 << 16):
                self._data += chunk[: OUTPUT_LIMIT - len(self._data)]
                self._size += len(chunk)

    def text(self) -> str:
        text = self._data.decode("utf-8", "replace").rstrip("\r\n")
        return text if self._size <= OUTPUT_LIMIT else f"{text}\n[truncated: {self._size:,} bytes in total]"

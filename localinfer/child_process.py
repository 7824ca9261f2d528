"""Child processes for untrusted work: they can be killed at any time, and the operating system limits them."""

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import IO

HAS_CPU_TIMER = hasattr(signal, "setitimer")  # otherwise the parent limits the wall time
HAS_MEMORY_LIMIT = sys.platform not in ("darwin", "win32")  # otherwise the parent measures the memory of the child
MEMORY_POLL_SECONDS = 0.05

Child = subprocess.Popen[bytes]


def start_child(code: str, packages: Sequence[str]) -> Child:
    """Start a Python process that runs `code` and imports only these packages. It communicates through pipes.

    The child ignores the user's Python settings. `code` begins with SET_PATH. Raises OSError.
    """
    command = [sys.executable, "-I", "-S", "-B", "-c", SET_PATH + code, *package_directories(packages)]
    pipe = subprocess.PIPE
    # A new session, or no console on Windows, keeps Ctrl-C in the terminal from reaching the child.
    return subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, start_new_session=True,
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
    )  # fmt: skip


SET_PATH = "import sys; sys.path += sys.argv[1:]; "


def package_directories(packages: Sequence[str]) -> list[str]:
    """Return the directories from which a child process imports these packages."""
    specs = [find_spec(name) for name in packages]
    origins = [(spec, Path(spec.origin)) for spec in specs if spec and spec.origin]
    directories = [path.parents[1 if spec.submodule_search_locations else 0] for spec, path in origins]
    return list(dict.fromkeys(map(str, directories)))


def limit_resources(max_memory: int) -> None:
    """Limit the memory of this process, and forbid writing files. Windows has no such limits, and macOS none on memory:
    `limited_memory` measures it there.
    """
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (max_memory, max_memory))


def limit_time(seconds: float) -> None:
    """Let SIGPROF kill this process after this many seconds of CPU time, even inside C code. Windows has no signals."""
    if HAS_CPU_TIMER:
        signal.setitimer(signal.ITIMER_PROF, seconds)


@contextlib.contextmanager
def limited_memory(child: Child, max_resident: int) -> Iterator[None]:
    """Kill the child if it uses too much memory meanwhile, on systems that do not limit the memory of a process."""
    if HAS_MEMORY_LIMIT:
        yield
        return
    done = threading.Event()
    threading.Thread(target=kill_above_limit, args=(child, max_resident, done), daemon=True).start()
    try:
        yield
    finally:
        done.set()


def kill_above_limit(child: Child, max_resident: int, done: threading.Event) -> None:
    """Measure the memory of the child until `done`, and kill it if it uses more than `max_resident` bytes.

    In a virtual environment on Windows, the child is a launcher, which starts the interpreter as a child of its own.
    """
    import psutil  # imported late: a short task is over before the first measurement

    while not done.wait(MEMORY_POLL_SECONDS):
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(child.pid)
            if sum(each.memory_info().rss for each in [process, *process.children(recursive=True)]) > max_resident:
                child.kill()
                return


def write_frame(stream: IO[bytes], *parts: bytes) -> None:
    """Write a frame: a length of four bytes and so many bytes."""
    content = b"".join(parts)
    stream.write(len(content).to_bytes(4, "little") + content)
    stream.flush()


def read_frame(stream: IO[bytes]) -> bytes:
    """Return the content of the next frame. Raises EOFError at the end of the stream."""
    size = stream.read(4)
    content = stream.read(int.from_bytes(size, "little"))
    if len(size) < 4 or len(content) < int.from_bytes(size, "little"):
        raise EOFError
    return content


def terminate(child: Child) -> None:
    """Kill the child and close its pipes."""
    child.kill()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
    child.wait()

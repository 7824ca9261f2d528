"""Runs command lines as if on Windows, as far as Linux can: windows_simulation.py COMMANDS

COMMANDS is a JSON list of [arguments, stdin]. stdout gets a JSON list of [exit code, stdout, stderr].

The modules of this project see what Python has on Windows: no POSIX modules and functions, few signals, pipes that
cannot be polled, and `sys.platform`. Open and mapped files can be neither deleted nor replaced, and all folders seem to
be writable by everyone. Python's own modules, other packages and child processes see Linux.
"""

import builtins
import contextlib
import ctypes
import errno
import importlib
import io
import json
import os
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

MISSING_MODULES = {"fcntl", "grp", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"}
PRESENT = {"SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM", "SIG_DFL", "SIG_IGN", "signal", "kill"}
MISSING = {
    "mmap": ("MAP_", "MADV_", "PROT_"),
    "os": (
        *("fork", "getuid", "geteuid", "getgid", "getegid", "getpg", "setpg", "setsid", "getsid", "kill", "nice"),
        *("pread", "pwrite", "posix_", "sched_", "sysconf", "uname", "mkfifo", "fchmod", "fchown", "chown", "openpty"),
        *("O_NONBLOCK", "O_CLOEXEC", "O_SYNC", "O_NOFOLLOW", "O_DIRECTORY", "getloadavg", "statvfs", "wait"),
    ),
    "signal": ("SIG", "setitimer", "getitimer", "ITIMER_", "alarm", "pause", "pthread_", "sig"),
    "socket": ("AF_UNIX",),
}
REPLACED: dict[str, dict[str, Any]] = {"os": {"name": "nt"}, "sys": {"platform": "win32"}, "select": {}}
# Machine code is loaded with the functions of the real system.
NATIVE_MODULES = {"quant.jit.executable_memory"}


class SimulatedModule(types.ModuleType):
    """A module of Python as the modules of this project see it."""

    def __getattribute__(self, name: str) -> Any:
        real = REAL[object.__getattribute__(self, "__name__")]
        replaced = REPLACED.get(real.__name__, {})
        if name.startswith(MISSING.get(real.__name__, ())) and name not in PRESENT:
            raise AttributeError(f"module {real.__name__!r} has no attribute {name!r} on Windows")
        return replaced[name] if name in replaced else getattr(real, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(REAL[object.__getattribute__(self, "__name__")], name, value)


REAL = {name: importlib.import_module(name) for name in [*MISSING, "select", "sys"]}
SIMULATED: dict[str, Any] = {name: SimulatedModule(name) for name in REAL}
real_import = builtins.__import__


def import_as_on_windows(name: str, globals: Any = None, *rest: Any, **keywords: Any) -> Any:
    """Import a module. Those of this project get simulated modules."""
    importer = str((globals or {}).get("__name__", ""))
    if importer.partition(".")[0] not in ("quant", "localinfer", "cli") or importer in NATIVE_MODULES:
        return real_import(name, globals, *rest, **keywords)
    if name in MISSING_MODULES:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return SIMULATED.get(name) or real_import(name, globals, *rest, **keywords)


def refuse_open_files(call: Callable[..., None]) -> Callable[..., None]:
    """Return a function that deletes or renames files, but none that this process has open or mapped."""

    def on_windows(*paths: Any, **keywords: Any) -> None:
        folder = keywords.get("dir_fd")
        parent = Path() if folder is None else Path(f"/proc/self/fd/{folder}")
        for path in paths:
            if (parent / path).resolve() in open_files():
                raise PermissionError(errno.EACCES, "The process cannot access the file because it is in use", path)
        call(*paths, **keywords)

    return on_windows


def open_files() -> set[Path]:
    """Return the paths of the files that this process has open or mapped."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(descriptor.readlink())
    maps = Path("/proc/self/maps").read_text().splitlines()
    return found | {Path(line.split(maxsplit=5)[5]) for line in maps if "/" in line}


def fail(*_: object) -> None:
    """Stand in for a function that always fails, such as `select` on anything but sockets."""
    raise OSError(errno.EINVAL, "Invalid argument")


def lock(descriptor: int, mode: int, n_bytes: int) -> None:
    """Stand in for `msvcrt.locking`."""
    import fcntl

    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


class System:
    """Stands in for a DLL, all of whose functions fail."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, name: str) -> Any:
        return FailingFunction()


class FailingFunction:
    """A function that returns 0, and lets callers set its types."""

    argtypes: Any = None
    restype: Any = None

    def __call__(self, *arguments: Any) -> int:
        return 0


def simulate() -> None:
    """Begin the simulation. The modules of this project must not be imported yet."""
    os.umask(0)
    make_folder = os.mkdir
    os.mkdir = lambda path, mode=0o777, **keywords: make_folder(path, **keywords)
    for name in ("unlink", "remove", "rename", "replace"):
        setattr(os, name, refuse_open_files(getattr(os, name)))
    ctypes.WinDLL = System
    REPLACED["select"]["select"] = fail
    SIMULATED["msvcrt"] = types.SimpleNamespace(locking=lock, LK_NBLCK=2, get_osfhandle=int)
    SIMULATED["winreg"] = types.SimpleNamespace(OpenKey=fail, HKEY_LOCAL_MACHINE=0)
    builtins.__import__ = import_as_on_windows


def run(arguments: list[str], text: str) -> tuple[int, str, str]:
    """Run a command line in this process, with `text` on stdin."""
    from cli import __main__

    with tempfile.TemporaryFile() as file:
        file.write(text.encode())
        file.seek(0)
        streams = io.TextIOWrapper(io.BytesIO()), io.TextIOWrapper(io.BytesIO())
        with io.TextIOWrapper(io.FileIO(os.dup(file.fileno()))) as sys.stdin:
            sys.stdout, sys.stderr = streams
            try:
                code = __main__.run(arguments)
            except SystemExit as error:
                code = int(error.code or 0)
            finally:
                sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
    for stream in streams:
        stream.flush()
    out, err = (stream.buffer.getvalue().decode() for stream in streams)
    return code, out, err


if __name__ == "__main__":
    simulate()
    print(json.dumps([run(arguments, text) for arguments, text in json.loads(sys.argv[1])]))

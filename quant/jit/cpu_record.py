"""A record of what LLVM finds out about this machine's CPU, so that a warm start need not load LLVM.

The name of the record's file is a hash of how the system describes the CPU, and of what else the result depends on.
"""

import contextlib
import hashlib
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from quant.jit.files import is_private, replace_file

CPUINFO = Path("/proc/cpuinfo")
CPUINFO_BYTES = 4096  # the first cores; Linux computes the text while it is read
CHANGING_FIELDS = ("cpu MHz", "bogomips", "BogoMIPS", "processor", "core id", "apicid", "initial apicid")
SYSCTL_NAMES = ("machdep.cpu.brand_string", "hw.cpufamily", "hw.cpusubfamily", "hw.optional.arm.FEAT_SME2")

_directory: Callable[[], Path | None] = lambda: None  # noqa: E731 (set by `keep_in`)


def keep_in(directory: Callable[[], Path | None]) -> None:
    """Keep records in the directory that a function returns; without one, nothing is recorded."""
    global _directory
    _directory = directory


def read_or_make(sources: Sequence[Path], make: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the record of this CPU. If there is none, `make` it, and write it.

    The record depends on the text of the source files, and on the version of llvmlite. A failed read or write never
    raises: it only costs time.
    """
    path = record_path(sources)
    with contextlib.suppress(OSError, ValueError):
        if path and is_private(path.parent):
            found = json.loads(path.read_bytes())
            if isinstance(found, dict):
                return found
    made = make()
    with contextlib.suppress(OSError):
        if path:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if is_private(path.parent):
                replace_file(path, json.dumps(made, indent=1).encode())
    return made


def record_path(sources: Sequence[Path]) -> Path | None:
    """Return the path of this CPU's record, or None if there is no directory, or if the CPU cannot be told apart from
    others."""
    directory, cpu = _directory(), describe_cpu()
    if directory is None or not cpu:
        return None
    digest = hashlib.sha256("\0".join([cpu, platform.machine(), package_version("llvmlite")]).encode())
    for source in sources:
        digest.update(source.read_bytes())
    return directory / f"cpu-{digest.hexdigest()[:24]}.json"


def describe_cpu() -> str:
    """Return how the system describes the CPU and its features, or "" if it does not."""
    if sys.platform == "darwin":
        return "\n".join(map(read_sysctl, SYSCTL_NAMES))
    if sys.platform == "win32":
        return os.environ.get("PROCESSOR_IDENTIFIER", "")
    try:
        with CPUINFO.open("rb") as file:
            lines = file.read(CPUINFO_BYTES).decode(errors="replace").splitlines()[:-1]  # the last one may be cut
    except OSError:
        return ""
    return "\n".join(sorted({line for line in lines if not line.startswith(CHANGING_FIELDS)}))


def read_sysctl(name: str) -> str:
    """Return a value of macOS as hexadecimal bytes, or ""."""
    import ctypes

    value, size = ctypes.create_string_buffer(256), ctypes.c_size_t(256)
    failed = ctypes.CDLL(None).sysctlbyname(name.encode(), value, ctypes.byref(size), None, ctypes.c_size_t(0))
    return "" if failed else value.raw[: size.value].hex()


def package_version(package: str) -> str:
    """Return the text of a package's `_version.py`. Reading it avoids importing the package or importlib.metadata."""
    spec = find_spec(package)
    assert spec is not None  # it is a dependency
    assert spec.origin is not None
    return Path(spec.origin).with_name("_version.py").read_text(encoding="utf-8")

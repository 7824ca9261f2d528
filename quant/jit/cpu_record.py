"""A record of what LLVM finds out about this machine's CPU, so that a warm start need not load LLVM.

The name of the record's file is a hash of how the system describes the CPU, and of what else the result depends on.
"""

import contextlib
import hashlib
import json
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from quant.jit.files import is_private, replace_file

CPUINFO = Path("/proc/cpuinfo")
CPUINFO_BYTES = 4096  # the first cores; Linux computes the text while it is read
CHANGING_FIELDS = ("cpu MHz", "bogomips", "BogoMIPS", "processor", "core id", "apicid", "initial apicid")
SYSCTL_NAMES = ("machdep.cpu.brand_string", "hw.cpufamily", "hw.cpusubfamily")
MAX_RECORDS = 8  # of other versions, and of other machines that share the directory

Record = TypeVar("Record")

_directory: Callable[[], Path | None] = lambda: None  # noqa: E731 (set by `keep_in`)


def keep_in(directory: Callable[[], Path | None]) -> None:
    """Keep records in the directory that a function returns; without one, nothing is recorded."""
    global _directory
    _directory = directory


def read_or_make(
    dependencies: Sequence[bytes], parse: Callable[[Any], Record], make: Callable[[], Mapping[str, Any]]
) -> Record:
    """Return the parsed record of this CPU. If there is none that `parse` accepts, `make` it, and write it.

    Besides the CPU, the record depends on `dependencies` and on the version of llvmlite. `parse` raises ValueError,
    KeyError or TypeError for a damaged record. A failed read or write never raises: it only costs time.
    """
    path = None
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        path = record_path(dependencies)
        if path and is_private(path.parent):
            return parse(json.loads(path.read_bytes()))
    made = make()
    with contextlib.suppress(OSError):
        if path:
            write_record(path, made)
    return parse(made)


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record, and remove old ones. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_private(path.parent):
        return
    replace_file(path, json.dumps(record, indent=1).encode())
    records = sorted(path.parent.glob("cpu-*.json"), key=lambda each: -each.stat().st_mtime)
    for old in records[MAX_RECORDS:]:
        old.unlink(missing_ok=True)


def record_path(dependencies: Sequence[bytes]) -> Path | None:
    """Return the path of this CPU's record, or None if there is no directory, or if the CPU cannot be told apart from
    others."""
    directory, cpu = _directory(), describe_cpu()
    if directory is None or not cpu:
        return None
    digest = hashlib.sha256("\0".join([cpu, platform.machine(), package_version("llvmlite")]).encode())
    for dependency in dependencies:
        digest.update(dependency)
    return directory / f"cpu-{digest.hexdigest()[:24]}.json"


def describe_cpu() -> str:
    """Return how the system describes the CPU and its features, or "" if it does not: Windows does not list them."""
    if sys.platform == "darwin":
        return "\n".join(filter(None, map(read_sysctl, SYSCTL_NAMES)))
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

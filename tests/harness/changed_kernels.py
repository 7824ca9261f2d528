"""Kernels that are compiled from changed source text, and loaded in place of the real ones.

    python changed_kernels.py MODULE OLD NEW     # reads a kernel as JSON, writes its object file in base64
"""

import base64
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

    from quant.jit.kernel import Kernel

ROOT = Path(__file__).parents[2]


def flipped(number: str, bit: int) -> str:
    """Return a number in source text with one bit changed: of an integer, or of a float in single precision."""
    if "." not in number:
        return str(int(number) ^ 1 << bit)
    [bits] = struct.unpack("<I", struct.pack("<f", float(number)))
    [changed] = struct.unpack("<f", struct.pack("<I", bits ^ 1 << bit))
    return repr(changed)


def load_changed(
    monkeypatch: "pytest.MonkeyPatch", kernel: "Kernel", module: str, old: str, new: str, folder: Path
) -> None:
    """Compile a kernel from the source of a module in which `new` replaces the only `old`. Store it in a kernel cache
    in the folder, and load it from there until the end of the test."""
    from localinfer import paths
    from quant.jit import loader
    from quant.jit.kernel_cache import KernelCache

    loader.load_kernels([kernel], paths.jit_dir())  # so that it is restored
    monkeypatch.delitem(loader.LOADED_KERNELS, kernel)
    command = [sys.executable, __file__, module, old, new]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        command, input=kernel.to_json(), capture_output=True, text=True, check=True, env=environment
    )
    cache = KernelCache(folder)
    cache.write(kernel.symbol, base64.b64decode(run.stdout))
    assert not loader.load_cached([kernel], cache)


class ChangedSource(SourceFileLoader):
    """Loads a module from changed source text."""

    def __init__(self, name: str, path: str, change: Callable[[str], str]) -> None:
        super().__init__(name, path)
        self._change = change

    def get_code(self, fullname: str) -> CodeType:
        text = self._change(Path(self.path).read_text(encoding="utf-8"))
        return compile(text, self.path, "exec", dont_inherit=True)


class ChangedModule(MetaPathFinder):
    """Finds the module that is changed."""

    def __init__(self, name: str, change: Callable[[str], str]) -> None:
        self._name, self._change = name, change

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        spec = PathFinder.find_spec(fullname, path)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = ChangedSource(fullname, spec.origin, self._change)
        return spec


def main(module: str, old: str, new: str) -> None:
    """Compile the kernel of stdin."""

    def change(text: str) -> str:
        assert text.count(old) == 1, f"{module} has {text.count(old)} times {old!r}"
        return text.replace(old, new)

    sys.meta_path.insert(0, ChangedModule(module, change))
    from quant.jit.compiler import compile_kernel
    from quant.jit.kernel import Kernel

    code = compile_kernel(Kernel.from_json(sys.stdin.read()))
    assert module in sys.modules
    sys.stdout.write(base64.b64encode(code).decode())


if __name__ == "__main__":
    main(*sys.argv[1:])

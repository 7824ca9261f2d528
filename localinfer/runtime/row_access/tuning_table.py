"""The tuning table: how the kernels of this machine read rows fastest, as measured, in a file beside the kernel cache.

An entry belongs to a block format, a row length and a number of threads, or to the register tiles of a block format.
Kernels of other versions or of another CPU have a directory of their own, and so a table of their own.
"""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from localinfer.graph.ops.product_choices import ProductShape
from quant.ggml import TYPES
from quant.jit.files import replace_file
from quant.jit.kernel_cache import KernelCache
from quant.matmul.row_access import CANDIDATES, RowAccess

FILE_NAME = "tuning.json"
TILE_KEY = "{} in register tiles"
MAX_DISTURBED = 3  # measurements of a busy machine, after which it is left alone


class TunedAccess(NamedTuple):
    """The fastest row access of a shape, and the bytes per second that it read.

    `disturbed` is 0 for a measurement that can be trusted, else the number of measurements in a row that other programs
    disturbed.
    """

    access: RowAccess
    bytes_per_second: float
    disturbed: int = 0

    @property
    def is_final(self) -> bool:
        """Whether the next start need not measure again."""
        return self.disturbed == 0 or self.disturbed >= MAX_DISTURBED


class TuningTable:
    """The entries of this machine. Like the kernel cache, a failed read or write never raises: it only costs time."""

    def __init__(self, jit_dir: Path | None) -> None:
        directory = KernelCache(jit_dir).directory
        self.path = directory / FILE_NAME if directory else None

    def read(self, threads: int) -> dict[ProductShape, TunedAccess]:
        """Return the valid entries for a number of threads."""
        return {shape: tuned for (shape, other), tuned in self.read_all().items() if other == threads}

    def read_all(self) -> dict[tuple[ProductShape, int], TunedAccess]:
        """Return all valid entries, by shape and number of threads."""
        entries = {}
        for text, value in self._read_json().items():
            with contextlib.suppress(KeyError, TypeError, ValueError):
                access, rate, disturbed = RowAccess(*value["access"]), value["bytes_per_second"], value["disturbed"]
                if access in CANDIDATES and rate > 0 and disturbed >= 0:  # the file may have been damaged
                    entries[parse_key(text)] = TunedAccess(access, float(rate), int(disturbed))
        return entries

    def read_subtractions(self) -> dict[int, bool]:
        """Return whether register tiles subtract, by tensor type: see `localinfer.runtime.row_access.tile_timing`."""
        found, entries = self._read_json(), {}
        for number, kind in TYPES.items():
            with contextlib.suppress(KeyError, TypeError):
                entries[number] = bool(found[TILE_KEY.format(kind.name)]["subtract"])
        return entries

    def update_subtractions(self, entries: Mapping[int, bool]) -> None:
        """Replace the choices of some tensor types for register tiles."""
        self._write({TILE_KEY.format(TYPES[number].name): {"subtract": entries[number]} for number in entries})

    def update(self, threads: int, entries: Mapping[ProductShape, TunedAccess]) -> None:
        """Replace the entries of some shapes."""
        changed = {
            format_key(shape, threads): tuned._asdict() | {"access": list(tuned.access)}
            for shape, tuned in entries.items()
        }
        self._write(changed)

    def _write(self, changed: Mapping[str, object]) -> None:
        if self.path and changed:
            with contextlib.suppress(OSError):
                replace_file(self.path, json.dumps({**self._read_json(), **changed}, indent=1).encode())

    def _read_json(self) -> dict[str, Any]:
        try:
            found = json.loads(self.path.read_bytes()) if self.path else {}
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


def format_key(shape: ProductShape, threads: int) -> str:
    """Return an entry's key: "Q4_K 1536 columns 1 passes 2 threads"."""
    return f"{TYPES[shape.type].name} {shape.n_in} columns {shape.passes} passes {threads} threads"


def parse_key(text: str) -> tuple[ProductShape, int]:
    """Parse the output of `format_key`. Raises KeyError or ValueError if it is something else."""
    name, columns, _, passes, _, threads, _ = text.split(" ")
    numbers = {kind.name: number for number, kind in TYPES.items()}
    return ProductShape(numbers[name], int(columns), int(passes)), int(threads)

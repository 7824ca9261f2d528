"""The model families: one file each, a function `record` that writes down the forward pass.

A file has the name that GGUF gives the architecture, with `_` for `-`.
"""

import re
from importlib import import_module
from pathlib import Path
from typing import Protocol

from localinfer.errors import Unsupported
from localinfer.files.gguf import GGUF
from localinfer.plan.recorder import Recorder
from localinfer.text import printable

NAME = re.compile(r"[a-z][a-z0-9_.-]*")


class Record(Protocol):
    """Records a whole forward pass."""

    def __call__(self, r: Recorder) -> None: ...


def known() -> list[str]:
    """The names of all architectures that there are."""
    return sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))


def find(f: GGUF) -> Record:
    """The `record` function of the file's architecture.

    Raises Unsupported naming the architecture and the nearest one that is known.
    """
    name = f.get("general.architecture", str)
    module = re.sub(r"[.-]", "_", name)
    if not NAME.fullmatch(name) or module not in known():
        from difflib import get_close_matches

        near = get_close_matches(module, known(), 1, 0.5)
        hint = f"the nearest one that is: {near[0]}" if near else f"only {', '.join(known())}"
        raise f.error("general.architecture", f"{printable(name, 80)!r} is not supported ({hint})", Unsupported)
    record: Record = import_module(f"localinfer.architectures.{module}").record
    return record

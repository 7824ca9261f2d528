"""The model families: one file each, a function `record` that writes down the forward pass."""

from importlib import import_module
from typing import Protocol

from localinfer.errors import Unsupported
from localinfer.files.gguf import GGUF
from localinfer.plan.recorder import Recorder
from localinfer.text import printable

KNOWN = ("llama", "gemma3", "qwen2", "qwen3")


class Record(Protocol):
    """Records a whole forward pass."""

    def __call__(self, r: Recorder) -> None: ...


def find(f: GGUF) -> Record:
    """The `record` function of the file's architecture.

    Raises Unsupported naming the architecture and those that are known.
    """
    name = f.get("general.architecture", str)
    if name not in KNOWN:
        what = f"{printable(name, 80)!r} is not supported (only {', '.join(KNOWN)})"
        raise f.error("general.architecture", what, Unsupported)
    record: Record = import_module(f"localinfer.architectures.{name}").record
    return record

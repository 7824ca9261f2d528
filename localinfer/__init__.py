"""localinfer: a local LLM runtime. `load` a model, then `generate` or `chat`.

Importing this package imports nothing heavy: a name is fetched from its module when it is first asked for, so
that a command line that only prints its help needs no numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from localinfer.errors import (
        BadForm,
        ContextOverflow,
        Incomplete,
        LocalInferError,
        ModelNotFound,
        NotEnoughMemory,
        Unsupported,
        UsageError,
    )
    from localinfer.model import Model, Piece, Stats, load
    from localinfer.options import Options
    from localinfer.prompt.prompt import Prompt

__all__ = [
    "BadForm", "ContextOverflow", "Incomplete", "LocalInferError", "Model", "ModelNotFound", "NotEnoughMemory",
    "Options", "Piece", "Prompt", "Stats", "Unsupported", "UsageError", "load",
]  # fmt: skip

_HOMES = {
    "Model": "model", "Piece": "model", "Stats": "model", "load": "model",
    "Options": "options", "Prompt": "prompt.prompt",
}  # fmt: skip


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)

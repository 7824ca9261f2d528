"""What clients are told of a model's file, whether it is in memory or not."""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from localinfer.errors import LocalInferError
from localinfer.files.gguf import GGUF, open_gguf
from localinfer.quantizing.recipes import RECIPES

GUESSED = 1024  # a flag in the number of a file's type: whoever wrote it was not sure
UNITS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))


@dataclass(frozen=True, slots=True)
class Facts:
    """`digest` tells files apart; the sum of all bytes would take seconds for each of them."""

    architecture: str
    type: str
    n_parameters: int
    size: int  # bytes
    modified: datetime
    digest: str
    n_ctx: int  # that it was trained with
    template: str

    @property
    def parameters(self) -> str:
        """1.5B."""
        unit = next(((size, letter) for size, letter in UNITS if self.n_parameters >= size), (1.0, ""))
        return f"{self.n_parameters / unit[0]:.3g}{unit[1]}"


def facts_of(path: Path) -> Facts | None:
    """None for a file that is gone or damaged."""
    try:
        state = path.stat()
        return _read(path, state.st_mtime_ns, state.st_size)
    except (OSError, LocalInferError):
        return None


@lru_cache(maxsize=512)
def _read(path: Path, mtime_ns: int, size: int) -> Facts:
    f = open_gguf(path)
    architecture = f.get("general.architecture", str, "")
    return Facts(
        architecture=architecture,
        type=type_of(f),
        n_parameters=sum(tensor.n_elements for tensor in f.tensors.values()),
        size=f.size,
        modified=datetime.fromtimestamp(mtime_ns / 1e9, UTC),
        digest=hashlib.sha256(f"{path}\0{mtime_ns}\0{size}".encode("utf-8", "surrogateescape")).hexdigest(),
        n_ctx=f.get(f"{architecture}.context_length", int, 0),
        template=f.get("tokenizer.chat_template", str, ""),
    )


def type_of(f: GGUF) -> str:
    """What the file says that it is quantized to."""
    number = f.get("general.file_type", int, -1)
    known = {recipe.number: name for name, recipe in RECIPES.items()}
    return known.get(number & ~GUESSED, "unknown") if number >= 0 else "unknown"

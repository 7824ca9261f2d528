"""Metadata of model files for API responses. The model does not need to be loaded."""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from localinfer.errors import LocalInferError
from localinfer.gguf.file_types import FILE_TYPE, file_type_name
from localinfer.gguf.reader import open_gguf

UNITS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Metadata of a GGUF file.

    `digest` identifies the file by its path, size and modification time, because hashing its content takes seconds.
    """

    architecture: str
    file_type: str
    n_parameters: int
    size: int  # bytes
    modified: datetime
    digest: str
    n_ctx: int  # context length in training
    template: str

    @property
    def parameter_size(self) -> str:
        """The number of parameters with a unit, such as "1.5B"."""
        unit = next(((size, letter) for size, letter in UNITS if self.n_parameters >= size), (1.0, ""))
        return f"{self.n_parameters / unit[0]:.3g}{unit[1]}"


def read_model_info(path: Path) -> ModelInfo | None:
    """Return the metadata of a file, or None if it is missing or damaged. Results are cached."""
    try:
        state = path.stat()
        return _read(path, state.st_mtime_ns, state.st_size)
    except (OSError, LocalInferError):
        return None


@lru_cache(maxsize=512)
def _read(path: Path, mtime_ns: int, size: int) -> ModelInfo:
    f = open_gguf(path)
    architecture = f.get("general.architecture", str, "")
    return ModelInfo(
        architecture=architecture,
        file_type=file_type_name(f.get(FILE_TYPE, int, -1)) or "unknown",
        n_parameters=sum(tensor.n_elements for tensor in f.tensors.values()),
        size=f.size,
        modified=datetime.fromtimestamp(mtime_ns / 1e9, UTC),
        digest=hashlib.sha256(f"{path}\0{mtime_ns}\0{size}".encode("utf-8", "surrogateescape")).hexdigest(),
        n_ctx=f.get(f"{architecture}.context_length", int, 0),
        template=f.get("tokenizer.chat_template", str, ""),
    )

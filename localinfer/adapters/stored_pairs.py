"""What is read of a LoRA adapter, whatever the format of its file."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from localinfer.gguf.source import SourceTensor


class StoredPair(NamedTuple):
    """The matrices A and B for one tensor of a model, and the factor of their product: alpha / rank, or what else the
    file says."""

    a: SourceTensor
    b: SourceTensor
    factor: float


class LoraFile(NamedTuple):
    """An adapter: the pairs by the names of the model's tensors, and the files that were read."""

    path: Path
    pairs: Mapping[str, StoredPair]
    files: tuple[Path, ...]

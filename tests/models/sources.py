"""In-memory sources for quantization."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localinfer.gguf.source import Field, Source, SourceTensor

F32 = 0


def from_arrays(**arrays: NDArray[np.float32]) -> Source:
    """Return a source with these tensors."""

    def tensor(name: str, values: NDArray[np.float32]) -> SourceTensor:
        return SourceTensor(name, values.shape, F32, lambda: values.reshape(-1).view(np.uint8))

    tensors = {name: tensor(name, values) for name, values in arrays.items()}
    return Source(Path("memory"), {"general.architecture": Field.text("llama")}, tensors, ())

"""Tiny checkpoints of models that see or hear, for tests of converting their encoders.

tests/data/projectors.json.xz has their configuration files, the shapes of their tensors, and what llama.cpp's converter
makes of them. Weights follow from names and shapes.
"""

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import recorded
from numpy.typing import NDArray
from reference_models import values
from safetensors.numpy import save_file


def descriptions() -> dict[str, Any]:
    """Return all descriptions by name: `files` (JSON by name), `tensors` (shapes by name), `expected`."""
    found: dict[str, Any] = recorded.read("projectors")
    return found


def write_checkpoint(path: Path, description: Mapping[str, Any]) -> Path:
    """Write a checkpoint and return its path."""
    path.mkdir(parents=True)
    for name, content in description["files"].items():
        (path / name).write_text(json.dumps(content), encoding="utf-8")
    shapes = description["tensors"].items()
    tensors = {name: np.asarray(values(name, tuple(shape), 1.0)) for name, shape in shapes}
    tensors |= {name: variances(value) for name, value in tensors.items() if name.endswith(".running_var")}
    tensors |= {name: scales(value) for name, value in tensors.items() if name.endswith(".per_dim_scale")}
    save_file(tensors, path / "model.safetensors")
    return path


def scales(some: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return numbers whose softplus, ln(1 + e^x), PyTorch rounds correctly."""
    return np.where(some > 0, np.float32(24), np.float32(0))


def comparable(name: str, tensors: Mapping[str, str]) -> dict[str, str]:
    """Return the tensors of a file whose bytes are compared: not those that PyTorch computes, with other rounding."""
    computed = ("a.position_embd.weight",) if name == "qwen2.5omni" else ()
    return {key: value for key, value in tensors.items() if key not in computed}


def variances(some: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return variances whose deviations have few bits when 1e-5 is added to them: PyTorch's square roots of other
    numbers are not correctly rounded."""
    deviations = np.where(some > 1, np.float32(1.5), np.float32(0.5))
    return deviations**2 - np.float32(1e-5)


def summary(shape: Sequence[int], type_name: str, data: NDArray[Any]) -> str:
    """Return the shape, the type and a digest of a tensor: "F32 64x32 1f00c0ffee"."""
    digest = blake2b(np.ascontiguousarray(data).tobytes(), digest_size=5).hexdigest()
    return f"{type_name} {'x'.join(str(int(size)) for size in shape)} {digest}"


def digest_of_all(tensors: Mapping[str, str]) -> str:
    """Return a digest of the names and summaries of all tensors."""
    return blake2b(json.dumps(tensors, sort_keys=True).encode(), digest_size=8).hexdigest()

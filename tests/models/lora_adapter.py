"""LoRA adapters and control vectors in GGUF, as the programs of llama.cpp write them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from tiny import Field, add_key, as_field

RANK, ALPHA = 4, 8.0
Floats = NDArray[np.float32]


def lora_adapter(
    path: Path, *, seed: int = 0, changes: Mapping[str, Floats | None] | None = None, **keys: object
) -> Path:
    """Write an adapter of the tiny `llama` model: of a query matrix, and of the feed-forward output of layer 1.

    `changes` replaces tensors, or removes them with None; `keys` replace metadata, with _ for the dots of the keys.
    """
    rng = np.random.default_rng(seed)
    shapes = {
        "blk.0.attn_q.weight.lora_a": (RANK, 256), "blk.0.attn_q.weight.lora_b": (256, RANK),
        "blk.1.ffn_down.weight.lora_a": (RANK, 512), "blk.1.ffn_down.weight.lora_b": (256, RANK),
    }  # fmt: skip
    tensors: dict[str, Floats | None] = {
        name: 0.1 * rng.standard_normal(shape, np.float32) for name, shape in shapes.items()
    }
    changed = {name: values for name, values in (tensors | dict(changes or {})).items() if values is not None}
    return write_adapter(path, changed, **{"adapter_lora_alpha": ALPHA} | keys)


def random_pairs(
    path: Path, shapes: Mapping[str, tuple[int, ...]], *, rank: int = 4, seed: int = 0, alpha: float = ALPHA,
    dtype: type[np.floating[Any]] = np.float32, architecture: str = "llama",
) -> Path:  # fmt: skip
    """Write an adapter with random matrices for tensors of these shapes."""
    rng, tensors = np.random.default_rng(seed), dict[str, NDArray[Any]]()
    for name, shape in shapes.items():
        *experts, n_out, n_in = shape
        sizes = ((n_out, rank), (n_in, rank)) if name.startswith("token_embd") else ((rank, n_in), (n_out, rank))
        for side, size in zip("ab", sizes, strict=True):
            values = rng.standard_normal((*experts, *size)) / np.sqrt(size[-1])
            tensors[f"{name}.lora_{side}"] = values.astype(dtype)
    return write_adapter(path, tensors, general_architecture=architecture, adapter_lora_alpha=alpha)


def control_vector(path: Path, directions: Mapping[int, Floats], **keys: object) -> Path:
    """Write a control vector with these directions by layer."""
    tensors = {f"direction.{layer}": values for layer, values in directions.items()}
    kind = {"general_architecture": "controlvector", "general_type": None, "adapter_type": None}
    return write_adapter(path, tensors, **kind | keys)


def write_adapter(path: Path, tensors: Mapping[str, NDArray[Any]], *, bf16: bool = False, **keys: object) -> Path:
    """Write an adapter with these tensors, rounded to bfloat16 or as they are; `keys` replace metadata, with _ for the
    dots of the keys and __ for _, or remove it with None."""
    metadata: dict[str, object] = {"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora"}
    metadata |= {key.replace("__", "*").replace("_", ".").replace("*", "_"): value for key, value in keys.items()}
    writer = gguf.GGUFWriter(path, "")
    writer.kv_data[0].clear()
    for key, value in metadata.items():
        if value is not None:
            add_key(writer, key, value if isinstance(value, Field) else as_field(value))  # type: ignore[arg-type]
    for name, values in tensors.items():
        if bf16:
            type = gguf.GGMLQuantizationType.BF16
            writer.add_tensor(name, gguf.quants.quantize(values, type), raw_dtype=type)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path

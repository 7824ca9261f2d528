"""A LoRA adapter for the tiny `llama` model, as llama.cpp's convert_lora_to_gguf.py writes it."""

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray
from tiny import Field, add_key, as_field

RANK, ALPHA = 4, 8.0
Floats = NDArray[np.float32]


def lora_adapter(
    path: Path, *, seed: int = 0, changes: Mapping[str, Floats | None] | None = None, **keys: object
) -> Path:
    """Write an adapter of a query matrix and of the feed-forward output of layer 1.

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
    metadata = {"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora"}
    fields = {**metadata, "adapter.lora.alpha": ALPHA}
    fields |= {key.replace("_", "."): value for key, value in keys.items()}  # type: ignore[misc]
    writer = gguf.GGUFWriter(path, "")
    writer.kv_data[0].clear()
    for key, value in fields.items():
        add_key(writer, key, value if isinstance(value, Field) else as_field(value))
    for name, values in (tensors | dict(changes or {})).items():
        if values is not None:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path

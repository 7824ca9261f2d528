"""Checkpoints of reference models whose tensors have any type that safetensors knows; its numpy API lacks some."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import reference_models

WIDER = {96: 128, 160: 192}  # so that rows are whole blocks of 64
StoredTensor = tuple[str, Any]  # safetensors' dtype name, and the values


def folder_of(
    name: str, folder: Path, tensors: Mapping[str, StoredTensor], *, wider: bool = False, **more: Any
) -> Path:
    """Write a reference model's checkpoint with these tensors, and with more keys in config.json."""
    path, config = folder, reference_models.read_description(name)["config"]
    path.mkdir(parents=True)
    if wider:
        config = {key: WIDER.get(value, value) if type(value) is int else value for key, value in config.items()}
        config |= {"num_attention_heads": 4, "num_key_value_heads": 4 if name == "llama2" else 2}
    (path / "config.json").write_text(json.dumps(config | more))
    (path / "tokenizer.json").write_text(json.dumps(reference_models.byte_tokenizer()))
    header, data = {}, b""
    for key, (kind, values) in tensors.items():
        ends = [len(data), len(data) + values.nbytes]
        header[key] = {"dtype": kind, "shape": list(values.shape), "data_offsets": ends}
        data += values.tobytes()
    text = json.dumps(header).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def shapes_of(name: str, *, wider: bool = False) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors of such a checkpoint."""
    actual = reference_models.weights(name, reference_models.read_description(name))
    return {key: tuple(WIDER.get(n, n) if wider else n for n in values.shape) for key, values in actual.items()}

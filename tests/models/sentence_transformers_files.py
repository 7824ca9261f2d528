"""The files of sentence-transformers beside a tiny encoder: pooling, dense layers and prompts."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import reference_models
from numpy.typing import NDArray
from safetensors.numpy import save_file

PACKAGE = "sentence_transformers.models"
PROMPTS = {"query": "query: ", "document": ""}
Floats = NDArray[np.float32]


def encoder(
    folder: Path, name: str = "bert", *, prompts: Mapping[str, str] = PROMPTS, default: str | None = None
) -> Path:
    """Write a reference model with mean pooling and prompts."""
    path = reference_models.checkpoint(name, folder)
    add_module(path, 0, "Transformer", "", {})
    add_module(path, 1, "Pooling", "1_Pooling", {"pooling_mode_mean_tokens": True})
    write_json(path / "config_sentence_transformers.json", {"prompts": dict(prompts), "default_prompt_name": default})
    return path


def add_dense(
    path: Path, number: int, shape: tuple[int, int], *, activation: str = "Identity", bias: bool = False
) -> dict[str, Floats]:
    """Add a dense layer (n_out, n_in) as module `number`, and return its tensors."""
    config = {"in_features": shape[1], "out_features": shape[0], "bias": bias,
              "activation_function": f"torch.nn.modules.linear.{activation}"}  # fmt: skip
    random = np.random.default_rng(number)
    tensors = {"linear.weight": random.normal(size=shape).astype(np.float32)}
    if bias:
        tensors["linear.bias"] = random.normal(size=shape[:1]).astype(np.float32)
    add_module(path, number, "Dense", f"{number}_Dense", config)
    save_file(tensors, path / f"{number}_Dense" / "model.safetensors")
    return tensors


def add_module(path: Path, number: int, kind: str, folder: str, config: Mapping[str, Any]) -> None:
    """Add a module to modules.json, and its config.json if it has a folder."""
    file = path / "modules.json"
    modules = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    write_json(file, [*modules, {"idx": number, "name": str(number), "path": folder, "type": f"{PACKAGE}.{kind}"}])
    if folder:
        (path / folder).mkdir()
        write_json(path / folder / "config.json", config)


def write_json(path: Path, values: object) -> None:
    path.write_text(json.dumps(values), encoding="utf-8")

"""Tiny models with draft heads: checkpoints with an MTP layer, and models with a separate EAGLE-3 head
(`eagle3_heads`).

An MTP layer has the weights of the reference model's last attention layer.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import eagle3_heads
import reference_models
from reference_models import Floats
from safetensors.numpy import load_file, save_file

NAMES = ["deepseek3", "glm-ocr", "glm4moe", "glm4moe-lite", "qwen35", "qwen35moe", "qwen3next"]  # of reference models
OF_QWEN = {"eh_proj": "fc", "enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "shared_head.norm": "norm"}


def checkpoint(name: str, folder: Path, *, has_embeddings: bool = False) -> Path:
    """Write a checkpoint with an MTP layer and return its path. With `has_embeddings`, the head has its own embedding
    and output layer.
    """
    path, reference = reference_models.checkpoint(name, folder), reference_models.read_description(name)
    tensors, blocks = load_file(path / "model.safetensors"), reference["n_layer"]
    model = "model.language_model." if "model.language_model.embed_tokens.weight" in tensors else "model."
    layers = f"{model}layers."
    last = max(int(each.removeprefix(layers).split(".")[0]) for each in tensors if each.endswith("o_proj.weight"))
    n_vocab, n = tensors[f"{model}embed_tokens.weight"].shape
    shapes: dict[str, tuple[int, ...]] = {"eh_proj": (n, 2 * n), "enorm": (n,), "hnorm": (n,), "shared_head.norm": (n,)}
    shapes |= {"embed_tokens": (n_vocab, n), "shared_head.head": (n_vocab, n)} if has_embeddings else {}
    head: dict[str, Floats] = {
        each.replace(f"layers.{last}.", f"layers.{blocks}."): values
        for each, values in tensors.items()
        if each.startswith(f"{layers}{last}.")
    }
    for each, shape in shapes.items():
        whole = f"{layers}{blocks}.{each}.weight"
        head[whole] = reference_models.values(f"{name}/{whole}", shape, reference["norm"])
    if name.startswith("qwen"):
        head = {qwen_name(each, blocks): values for each, values in head.items()}
    save_file(tensors | head, path / "model.safetensors")
    config = {"mtp_num_hidden_layers" if name.startswith("qwen") else "num_nextn_predict_layers": 1}
    (path / "config.json").write_text(json.dumps(reference["config"] | config), encoding="utf-8")
    return path


def qwen_name(name: str, blocks: int) -> str:
    _, _, remaining = name.partition(f"layers.{blocks}.")
    tensor = remaining.removesuffix(".weight")
    return f"mtp.{OF_QWEN[tensor]}.weight" if tensor in OF_QWEN else f"mtp.layers.0.{remaining}"


def write_with_mtp_head(name: str, folder: Path, type: str, *, has_embeddings: bool = False) -> Path:
    """Write the GGUF file of such a checkpoint, with matrices in this type if it fits."""
    from checkpoints import as_type  # imports localinfer, which make_conversion_fixtures.py does not need

    return as_type(checkpoint(name, folder, has_embeddings=has_embeddings), folder / f"{name}.gguf", type)


@dataclass(frozen=True)
class Pair:
    model: Path
    head: Path


def write_model_and_head(name: str, folder: Path, type: str = "F32") -> Pair:
    """Write a model and a draft head as two GGUF files, with matrices in this type."""
    from checkpoints import as_type

    model = reference_models.checkpoint(eagle3_heads.read_description(name)["model"], folder)
    head = eagle3_heads.checkpoint(name, folder)
    return Pair(as_type(model, folder / "model.gguf", type), as_type(head, folder / f"{name}.gguf", type, target=model))

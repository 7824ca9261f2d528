"""Tiny models with draft heads: checkpoints with an MTP layer, and models with a separate EAGLE-3 head
(`separate_heads`).

An MTP layer has the weights of the reference model's last attention layer.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import reference_models
import separate_heads
from reference_models import Floats
from safetensors.numpy import load_file, save_file

LOGITS = Path(__file__).parents[1] / "data" / "mtp_heads.npz"  # of some heads, computed by make_mtp_heads.py
NAMES = [  # of reference models
    "bailingmoe3", "cohere2moe", "deepseek3", "deepseek32", "deepseek4", "dots3note-narrow", "glm-dsa", "glm-ocr",
    "glm4moe", "glm4moe-lite", "glm5-next", "hy_v3", "hy_v4", "mimo2", "qwen35", "qwen35moe", "qwen3next", "step35",
]  # fmt: skip
DROPPED = {"hy_v4"}  # by llama.cpp's conversion
ALONE = {"deepseek4"}  # which llama.cpp's conversion writes to a file of its own
QWEN = {"eh_proj": "fc", "enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "shared_head.norm": "norm"}
FINAL_NORM = {"shared_head.norm": "final_layernorm"}
OTHER_NAMES = {  # of the tensors before and after the layer
    **dict.fromkeys(("bailingmoe3", "hy_v3", "hy_v4", "mimo2"), FINAL_NORM),
    **dict.fromkeys(("qwen35", "qwen35moe", "qwen3next"), QWEN),
    "deepseek4": {"shared_head.norm": "norm"},
    "step35": {
        "shared_head.norm": "transformer.shared_head.norm", "shared_head.head": "transformer.shared_head.output",
    },
}  # fmt: skip
# in place of numbers after the other layers
IN_MODULE = {"deepseek4": "mtp.", "hy_v4": "model.mtp_layers.", "mimo2": "model.mtp.layers."}
OF_WHOLE_MODULE = {"qwen35": "mtp.", "qwen35moe": "mtp.", "qwen3next": "mtp."}
# with the weights of an MTP layer, if it is not the last one with attention
SOURCE_LAYERS = {"dots3note-narrow": 0, "mimo2": 0}
COUNTS = {"mimo2": 3}  # MTP layers; llama.cpp requires 3 of this model
MISSING = {  # parts of the names of tensors that the other layer has
    "deepseek4": (".compressor.", ".indexer."), "glm5-next": (".hc_",), "hy_v4": (".hc_",),
}  # fmt: skip
OF_MODEL = {"deepseek4": ("hc_head_fn", "hc_head_base", "hc_head_scale")}  # tensors that the head has of its own, too
HALVES = {"deepseek4": ("e_proj", "h_proj")}  # of eh_proj
WITHOUT_EMBEDDINGS = {"bailingmoe3", "deepseek4"}  # whose head always uses the model's embedding
WITH_EMBEDDING = {"dots3note-narrow": "model.mtp."}  # whose head always has its own one, and no output layer
EMBEDDINGS = ("embed_tokens.weight", "word_embeddings.weight", "embed.weight")
OUTPUTS = ("self_attn.o_proj.weight", "attention.dense.weight", "attn.wo_b.weight")  # of attention
OF_LAYERS: dict[str, dict[str, Any]] = {  # further entries of lists in config.json
    "deepseek4": {"compress_ratios": 0},
    "step35": {"layer_types": "sliding_attention", "partial_rotary_factors": 1.0, "rope_theta": 10_000.0},
}


def checkpoint(name: str, folder: Path, *, has_embeddings: bool = False) -> Path:
    """Write a checkpoint with MTP layers and return its path. With `has_embeddings`, the head has its own embedding
    and output layer.
    """
    path, reference = reference_models.checkpoint(name, folder), reference_models.read_description(name)
    tensors = load_file(path / "model.safetensors")
    head: dict[str, Floats] = {}
    for number in range(COUNTS.get(name, 1)):
        head |= mtp_layer(name, tensors, number, has_embeddings=has_embeddings)
    save_file(tensors | head, path / "model.safetensors")
    key = "mtp_num_hidden_layers" if name.startswith("qwen") else "num_nextn_predict_layers"
    config = {**reference["config"], key: COUNTS.get(name, 1)}
    config |= {each: [*config[each], value] for each, value in OF_LAYERS.get(name, {}).items()}
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return path


def computed_logits() -> dict[str, Floats]:
    """Return the logits of some MTP heads that torch computed, in the form of `reference_models.expected`."""
    with np.load(LOGITS) as computed:
        return dict(computed)


def mtp_layer(name: str, tensors: Mapping[str, Floats], number: int, *, has_embeddings: bool) -> dict[str, Floats]:
    """Return the tensors of an MTP layer: the weights of another layer, and those before and after it."""
    reference = reference_models.read_description(name)
    [embedding] = [each for each in tensors if each.endswith(EMBEDDINGS)]
    outputs = [each for each in tensors if each.endswith(OUTPUTS)]
    layers = f"{outputs[0].partition('layers.')[0]}layers."
    last = max(int(each.removeprefix(layers).split(".")[0]) for each in outputs)
    source = f"{layers}{SOURCE_LAYERS.get(name, last)}."
    n_vocab, n = tensors[embedding].shape
    shapes: dict[str, tuple[int, ...]] = {"eh_proj": (n, 2 * n), "enorm": (n,), "hnorm": (n,), "shared_head.norm": (n,)}
    if has_embeddings and name not in WITHOUT_EMBEDDINGS and name not in WITH_EMBEDDING:
        shapes |= {"embed_tokens": (n_vocab, n), "shared_head.head": (n_vocab, n)}
    block = reference["n_layer"] + number
    prefix = f"{IN_MODULE[name]}{number}." if name in IN_MODULE else f"{layers}{block}."
    if name in OF_WHOLE_MODULE:
        prefix = f"mtp.layers.{number}."
    head = {each.replace(source, prefix): values for each, values in tensors.items() if each.startswith(source)}
    head = {each: x for each, x in head.items() if not any(part in each for part in MISSING.get(name, ()))}
    for each, shape in shapes.items():
        values = reference_models.values(f"{name}/{layers}{block}.{each}.weight", shape, reference["norm"])
        other = OTHER_NAMES.get(name, {}).get(each, each)
        whole_module = name in OF_WHOLE_MODULE and each in QWEN
        head[f"{OF_WHOLE_MODULE[name] if whole_module else prefix}{other}.weight"] = values
    if name in WITH_EMBEDDING:
        key = f"{WITH_EMBEDDING[name]}embed_tokens.weight"
        head[key] = reference_models.values(f"{name}/{key}", (n_vocab, n), reference["norm"])
    for each in OF_MODEL.get(name, ()):
        head[f"{prefix}{each}"] = reference_models.values(
            f"{name}/{prefix}{each}", tensors[each].shape, reference["norm"]
        )
    if name in HALVES:
        halves = np.split(head.pop(f"{prefix}eh_proj.weight"), 2, axis=1)
        head |= {f"{prefix}{half}.weight": x.copy() for half, x in zip(HALVES[name], halves, strict=True)}
    return head


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

    model = reference_models.checkpoint(separate_heads.read_description(name)["model"], folder)
    head = separate_heads.checkpoint(name, folder)
    return Pair(as_type(model, folder / "model.gguf", type), as_type(head, folder / f"{name}.gguf", type, target=model))

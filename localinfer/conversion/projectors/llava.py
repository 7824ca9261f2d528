"""LLaVA 1.5, LLaVA-NeXT and Granite Vision: CLIP or SigLIP, of which the model reads one layer or several, and two
layers. llama.cpp has a script for these, which names some tensors otherwise."""

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.projectors.pixtral import PIXTRAL
from localinfer.conversion.projectors.projector_architecture import (
    Fields,
    Parts,
    ProjectorArchitecture,
    ProjectorConfig,
    epsilon,
    whole,
)
from localinfer.errors import UnsupportedError
from localinfer.gguf.source import Field

CLIP, SIGLIP = "clip_vision_model", "siglip_vision_model"
ACTIVATIONS = {CLIP: ("quick_gelu", "gelu"), SIGLIP: ("gelu_pytorch_tanh", "gelu")}  # files have a flag for "gelu"
ROWS = {CLIP: "default", SIGLIP: "full"}  # of patches: without the class row, which SigLIP does not have
MAX_LAYERS, MAX_SIZE = 1024, 8192
LAYER = re.compile(r"\.layers\.(\d+)\.")
DIRECT = {
    "image_newline": "v.image_newline",
    "multi_modal_projector.linear_1.weight": "mm.0.weight",
    "multi_modal_projector.linear_1.bias": "mm.0.bias",
    "multi_modal_projector.linear_2.weight": "mm.2.weight",
    "multi_modal_projector.linear_2.bias": "mm.2.bias",
}
DEFAULT_SIZES = {"intermediate_size": 4096, "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}


def feature_layers(config: ProjectorConfig) -> list[int]:
    """Return the numbers of layers whose output the model reads, counted from 1."""
    n_layer = config.encoder.positive_int("num_hidden_layers", MAX_LAYERS)
    value = config.root.values.get("vision_feature_layer", -2)
    layers = value if isinstance(value, list) else [value]
    if not layers or not all(type(layer) is int and -n_layer <= layer <= n_layer and layer for layer in layers):
        raise config.root.error("vision_feature_layer", f"must be numbers of layers, 1 to {n_layer} or negative")
    return [layer if layer > 0 else n_layer + 1 + layer for layer in layers]


def llava_fields(config: ProjectorConfig) -> Fields:
    """Return the layers that the model reads, in addition to the usual fields."""
    kind = config.encoder.get("model_type", str, "")
    name = config.encoder.get("hidden_act", str, ACTIVATIONS.get(kind, ("",))[0])
    if name not in ACTIVATIONS.get(kind, ()):
        raise config.encoder.error("hidden_act", f"'{name}' is not supported", UnsupportedError)
    if config.root.get("vision_feature_select_strategy", str, "default") != ROWS[kind]:
        raise config.root.error("vision_feature_select_strategy", f"must be {ROWS[kind]}", UnsupportedError)
    layers = feature_layers(config)
    return {
        "clip.has_llava_projector": Field.flag(True),
        "clip.use_gelu": Field.flag(name == "gelu"),
        **epsilon(config.encoder, "layer_norm_eps", 1e-5 if kind == CLIP else 1e-6),
        "clip.vision.block_count": Field.uint32(max(layers)),
        "clip.vision.feature_layer": Field.numbers(np.array(layers, np.int32)),
    }


def llava_next_fields(config: ProjectorConfig) -> Fields:
    """Return the sizes of tiled images, in addition to LLaVA's fields. config.json has the height of each first."""
    sizes = config.root.get("image_grid_pinpoints", list)
    if not sizes or not all(is_size(each) for each in sizes):
        raise config.root.error("image_grid_pinpoints", "must be pairs of a height and a width")
    pinpoints = [side for height, width in sizes for side in (width, height)]
    return {
        **llava_fields(config),
        "clip.vision.image_grid_pinpoints": Field.numbers(np.array(pinpoints, np.int32)),
        "clip.vision.mm_patch_merge_type": Field.text("spatial_unpad"),
    }


def is_size(value: object) -> bool:
    return isinstance(value, Sequence) and len(value) == 2 and all(type(x) is int and 0 < x <= MAX_SIZE for x in value)


def llava_parts(name: str, config: ProjectorConfig) -> Parts | None:
    """Return a tensor under its name in GGUF; nothing for layers behind the last one that the model reads."""
    if name in DIRECT:
        return {DIRECT[name]: whole}
    layer = LAYER.search(name)
    return {} if layer and int(layer[1]) >= max(feature_layers(config)) else None


LLAVA = ProjectorArchitecture(
    projector_type="mlp",
    fields=llava_fields,
    prefixes={
        f"{model}{prefix}": prefix
        for model in ("model.", "")
        for prefix in ("vision_tower.", "multi_modal_projector.", "image_newline")
    },
    ignored=r"post_layernorm|vision_(model|tower)\.head\.|position_ids",
    names=((r"^vision_tower\.(?!vision_model)", "vision_tower.vision_model."),),
    parts=llava_parts,
    f32_tensors=r"v\.position_embd\..*",
    sizes=lambda config: {key: size for key, size in DEFAULT_SIZES.items() if key not in config.encoder.values},
)
LLAVA_NEXT = replace(LLAVA, fields=llava_next_fields)


def llava_or_pixtral(config: JsonObject) -> ProjectorArchitecture:
    """Return the architecture of the class that LLaVA 1.5 and Pixtral share."""
    return LLAVA if config.child("vision_config").get("model_type", str, "") in ACTIVATIONS else PIXTRAL


BY_CLASS = {"LlavaForConditionalGeneration": llava_or_pixtral, "LlavaNextForConditionalGeneration": LLAVA_NEXT}

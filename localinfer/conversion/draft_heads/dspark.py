"""DSpark draft heads (DeepSeek, 2026): DFlash heads with a Markov head, and often a confidence head.

Exports of DFlash's kind have all keys at the top level of config.json. Those of the kind of EAGLE-3 have the
hyperparameters of the layers in `transformer_layer_config`, count the layers whose inputs the head reads, and may have
a reduced vocabulary.

A head for DeepSeek-V4 is part of the checkpoint of its model: layers `mtp.0`, `mtp.1` and so on, which also have the
tensors outside the layers. config.json is the model's, with keys of the head that begin with `dspark_`.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.draft_heads import dflash
from localinfer.conversion.draft_heads.eagle3 import NESTED
from localinfer.conversion.hparams import HParams
from localinfer.conversion.tensor_formats.safetensors_file import StoredTensor
from localinfer.errors import UnsupportedError
from localinfer.gguf.source import Field
from localinfer.graph.properties.hyperparameters import MAXIMA

AUX_LAYERS, ANCHOR = "aux_hidden_state_layer_ids", "sample_from_anchor"
RANK, HAS_CONFIDENCE = "markov_rank", "has_confidence_head"
CONFIDENCE = "confidence_head.proj.weight"
DEEPSEEK4_BLOCK = "dspark_block_size"
DEEPSEEK4_KEYS = {
    DEEPSEEK4_BLOCK: dflash.BLOCK, "dspark_noise_token_id": dflash.MASK, "dspark_target_layer_ids": dflash.LAYERS,
}  # fmt: skip
DEEPSEEK4, DEEPSEEK4_HEAD = "DeepseekV4ForCausalLM", "DeepseekV4DSparkModel"  # classes
STAGE_TENSOR = re.compile(r"mtp\.(?P<number>\d{1,9})\.(?P<name>.+)")
OUTSIDE_LAYERS = re.compile(r"(main_proj|main_norm|norm|markov_head|confidence_head)\..+|hc_head_\w+")


def adapted_keys(config: JsonObject) -> dict[str, Any]:
    """Return the values of an export of EAGLE-3's kind under the keys of DFlash's, and from which token of a block the
    first draft token comes: the token of the text, or in exports of EAGLE-3's kind the first mask token."""
    values = dict(config.child(NESTED).values)
    if AUX_LAYERS in config.values:
        layers = config.get(AUX_LAYERS, list)
        values[dflash.LAYERS] = [layer - 1 if type(layer) is int else layer for layer in layers]
    own_kind = NESTED not in config.values and AUX_LAYERS not in config.values
    return values | {ANCHOR: config.get(ANCHOR, bool, own_kind)}


def describe_tensors(config: JsonObject, stored: Mapping[str, StoredTensor]) -> JsonObject:
    """Return the config with what follows from the tensors: the rank of the Markov head, and whether there is a
    confidence head. For DeepSeek-V4, also its layers, all of which have a window only."""
    names, markov = {dflash.name_in_head(name) for name in stored}, dflash.find_markov(stored)
    rank = markov.shape[-1] if markov and markov.shape else config.values.get(RANK)
    values = {**config.values, RANK: rank, HAS_CONFIDENCE: CONFIDENCE in names}
    if DEEPSEEK4_BLOCK in values:
        count = len({name.split(".")[2] for name in names if name.startswith("model.layers.")})
        values |= {"num_hidden_layers": count, "compress_ratios": [0] * count, "num_hash_layers": 0}
    return replace(config, values=values)


def add_sizes(config: JsonObject, hp: HParams) -> HParams:
    """Return the hyperparameters with the sizes of a DFlash head and of the Markov head."""
    hp, rank = dflash.add_sizes(config, hp), config.positive_int(RANK, MAXIMA["embedding_length"])
    return replace(hp, sizes={**hp.sizes, "n_rank": rank, "n_with_rank": hp.n_embd + rank})


def metadata(config: JsonObject, hp: HParams) -> dict[str, Field]:
    """Return the metadata of a DFlash head, and that of DSpark."""
    own = {key: Field.flag(config.get(key, bool)) for key in (ANCHOR, HAS_CONFIDENCE)}
    return {**dflash.metadata(config, hp), **own}


def describe_class(config: JsonObject, *, is_head: bool) -> JsonObject:
    """Return config.json of a checkpoint, or if `is_head` that of the head that the checkpoint of a model contains."""
    if is_head and config.values.get("architectures") == [DEEPSEEK4] and DEEPSEEK4_BLOCK in config.values:
        return replace(config, values={**config.values, "architectures": [DEEPSEEK4_HEAD]})
    return config


def head_tensors(stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return the tensors of a head that is part of its model's checkpoint, named as in a checkpoint of its own; all
    tensors of other checkpoints."""
    own = {}
    for name, tensor in stored.items():
        if match := STAGE_TENSOR.fullmatch(name):
            is_outside = OUTSIDE_LAYERS.fullmatch(match["name"])
            own[match["name"] if is_outside else f"layers.{match['number']}.{match['name']}"] = tensor
    return own or dict(stored)


def deepseek4_keys(config: JsonObject) -> dict[str, Any]:
    """Return the values of a head for DeepSeek-V4 under the usual keys."""
    return {name: config.values[key] for key, name in DEEPSEEK4_KEYS.items() if key in config.values}


def gemma4_keys(config: JsonObject) -> dict[str, Any]:
    """Return the values of a head for Gemma 4, whose layers are those with full attention, under the usual keys."""
    count = config.get("num_hidden_layers", int)
    if config.get("layer_types", list) != ["full_attention"] * count:
        raise config.error("layer_types", "must be full_attention for all layers", UnsupportedError)
    return adapted_keys(config) | {
        "head_dim": config.get("global_head_dim", int),
        "num_key_value_heads": config.get("num_global_key_value_heads", int),
        dflash.SCALE: config.positive_int("hidden_size", MAXIMA["embedding_length"]) ** 0.5,
    }


def gemma4_metadata(config: JsonObject, hp: HParams) -> dict[str, Field]:
    """Return the metadata of a head for Gemma 4, whose scores are not scaled."""
    activation = Field.text(config.get("hidden_act", str))
    return {**metadata(config, hp), "attention.scale": Field.float32(1.0), "hidden_activation": activation}

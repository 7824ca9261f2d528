"""DSpark draft heads (DeepSeek, 2026): DFlash heads with a Markov head, and often a confidence head.

Exports of DFlash's kind have all keys at the top level of config.json. Those of the kind of EAGLE-3 have the
hyperparameters of the layers in `transformer_layer_config`, count the layers whose inputs the head reads, and may have
a reduced vocabulary.
"""

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
    confidence head."""
    names, markov = {dflash.name_in_head(name) for name in stored}, dflash.find_markov(stored)
    rank = markov.shape[-1] if markov and markov.shape else config.values.get(RANK)
    return replace(config, values={**config.values, RANK: rank, HAS_CONFIDENCE: CONFIDENCE in names})


def add_sizes(config: JsonObject, hp: HParams) -> HParams:
    """Return the hyperparameters with the sizes of a DFlash head and of the Markov head."""
    hp, rank = dflash.add_sizes(config, hp), config.positive_int(RANK, MAXIMA["embedding_length"])
    return replace(hp, sizes={**hp.sizes, "n_rank": rank, "n_with_rank": hp.n_embd + rank})


def metadata(config: JsonObject, hp: HParams) -> dict[str, Field]:
    """Return the metadata of a DFlash head, and that of DSpark."""
    own = {key: Field.flag(config.get(key, bool)) for key in (ANCHOR, HAS_CONFIDENCE)}
    return {**dflash.metadata(config, hp), **own}


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

"""DFlash draft heads (Chen et al., 2026): their config, tensors and metadata, completed by values of the target model.

A head's tokenizer is the target's. Its config.json counts the target's layers whose outputs it reads; GGUF counts those
whose inputs it reads, the next ones.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from localinfer.conversion.checkpoint_folder import CheckpointFolder, JsonObject
from localinfer.conversion.eagle3 import open_target
from localinfer.conversion.hparams import HParams
from localinfer.conversion.tensor_formats.safetensors_file import StoredTensor
from localinfer.errors import UnsupportedError
from localinfer.escaping import printable
from localinfer.gguf.source import Field
from localinfer.graph.properties.hyperparameters import MAXIMA

OWN, LAYERS, BLOCK, MASK, SCALE = (
    "dflash_config", "target_layer_ids", "block_size", "mask_token_id", "input_embedding_scale",
)  # fmt: skip
MAX_BLOCK, DEFAULT_BLOCK = 256, 16  # tokens
M_ROPE = "target_has_mrope"  # the positions of the target's tokens have several coordinates
# of DFlash 2 and of heads for other models
UNSUPPORTED = ("conv_kernel_size", "selector_rank", "attention_value_scale", "output_multiplier", "causal")


def read_target(config: JsonObject, target: Path | None) -> tuple[CheckpointFolder, JsonObject]:
    """Return the directory of the target model, and the head's config with its nested values at the top level.

    Raises UsageError if no target is given, UnsupportedError for DFlash 2, LocalInferError if the head does not belong
    to the target.
    """
    folder, model = open_target(config, target, "a DFlash")
    own = config.child(OWN)
    for key in UNSUPPORTED:
        if own.values.get(key):
            raise own.error(key, f"{printable(repr(own.values[key]), 40)} is not supported", UnsupportedError)
    values = {**config.values, **{key: value for key, value in own.values.items() if value is not None}}
    n = model.positive_int("hidden_size", MAXIMA["embedding_length"])
    if config.positive_int("hidden_size", MAXIMA["embedding_length"]) != n:
        what = f"is {config.values['hidden_size']}; it must be {n}, that of its target model"
        raise config.error("hidden_size", what)
    count = model.positive_int("num_hidden_layers", MAXIMA["block_count"])
    if values.get("use_swa"):
        values |= {"use_sliding_window": True, "sliding_window": values.get("swa_window_size")}
        values["layer_types"] = ["sliding_attention"] * config.get("num_hidden_layers", int)
    rope = model.child("rope_parameters" if model.values.get("rope_parameters") else "rope_scaling")
    given = JsonObject(config.path, {**values, M_ROPE: "mrope_section" in rope.values})
    chosen = given.get(LAYERS, list)
    if not chosen or any(type(layer) is not int or not 0 <= layer < count for layer in chosen):
        raise given.error(LAYERS, f"is {printable(repr(chosen), 80)}; it must be some of the model's {count} layers")
    return folder, given


def add_sizes(config: JsonObject, hp: HParams) -> HParams:
    """Return the hyperparameters with the size of the head's input features."""
    return replace(hp, sizes={**hp.sizes, "n_features": len(config.get(LAYERS, list)) * hp.n_embd})


def metadata(config: JsonObject, hp: HParams) -> dict[str, Field]:
    """Return the layers whose inputs the head reads, and the number of tokens of a block."""
    fields = {
        "target_layers": Field.numbers(np.array(config.get(LAYERS, list), np.int32) + 1),
        "block_size": Field.uint32(config.positive_int(BLOCK, MAX_BLOCK, DEFAULT_BLOCK)),
    }
    if config.values.get(SCALE):
        fields["embedding_scale"] = Field.float32(config.positive_float(SCALE))
    if config.get(M_ROPE, bool):  # all pairs rotate by the first coordinate
        fields["rope.dimension_sections"] = Field.numbers(np.array([hp.head_dim // 2, 0, 0, 0], np.int32))
    return fields


def token_fields(config: JsonObject, n_vocab: int) -> dict[str, Field]:
    """Return the id of the mask token, which the target's tokenizer need not name."""
    id = config.get(MASK, int)
    if not 0 <= id < n_vocab:
        raise config.error(MASK, f"is {id}; it must be a token of the vocabulary")
    return {"tokenizer.ggml.mask_token_id": Field.uint32(id)}


def model_tensors(stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return the head's tensors, whose layers are named like a model's."""
    return {f"model.{name}" if name.startswith("layers.") else name: tensor for name, tensor in stored.items()}

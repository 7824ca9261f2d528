"""EAGLE-3 draft heads (Li et al., 2025): their config, tensors and metadata, completed by values of the target model.

A head's config.json is incomplete: the layers whose inputs it reads may follow from the target's number of layers,
and its tokenizer is the target's. `d2t` maps the draft vocabulary: the token id of output row i is i + d2t[i].
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from localinfer.conversion.checkpoint_folder import CONFIG, CheckpointFolder, JsonObject
from localinfer.conversion.hparams import HParams
from localinfer.conversion.tensor_formats.safetensors_file import StoredTensor
from localinfer.conversion.tensor_formats.values import to_bytes
from localinfer.errors import UsageError
from localinfer.escaping import printable
from localinfer.gguf.source import Field, SourceTensor
from localinfer.graph.properties.hyperparameters import MAXIMA
from quant import ggml

N_FEATURE_LAYERS = 3
LAYERS, HIDDEN, VOCABULARY, DRAFT = "target_layers", "target_hidden_size", "target_vocab_size", "draft_vocab_size"
NESTED, GIVEN_LAYERS = "transformer_layer_config", "eagle_aux_hidden_state_layer_ids"
I64 = ggml.TYPE_NUMBERS["I64"]
OFFSETS = {"I64": "<i8", "I32": "<i4"}  # the types that d2t may have in a checkpoint


def is_eagle3(config: JsonObject) -> bool:
    """Return whether config.json describes an EAGLE-3 head, whatever its class name is. DSpark heads may have the same
    keys, but their classes are named after them."""
    values = config.values
    return DRAFT in values and "dflash_config" not in values and "DSpark" not in str(values.get("architectures"))


def flatten_config(config: JsonObject) -> JsonObject:
    """Return the config with the hyperparameters of its nested layer config at the top level."""
    return replace(config, values={**config.values, **config.child(NESTED).values})


def open_target(config: JsonObject, target: Path | None, kind: str) -> tuple[CheckpointFolder, JsonObject]:
    """Return the directory of the target model of a draft head, and its config.json.

    Raises UsageError if no target is given.
    """
    if target is None:
        what = f"is {kind} draft head: --target-model-dir must name the checkpoint of its target model"
        raise UsageError(f"{printable(str(config.path))}: {what}")
    folder = CheckpointFolder(target)
    model = folder.json(CONFIG)
    return folder, model.child("text_config") if model.values.get("text_config") else model


def read_target(config: JsonObject, target: Path | None) -> tuple[CheckpointFolder, JsonObject]:
    """Return the directory of the target model, and the head's config completed by values of the target's config.

    Raises UsageError if no target is given.
    """
    folder, model = open_target(config, target, "an EAGLE-3")
    layers = model.positive_int("num_hidden_layers", MAXIMA["block_count"])
    default_layers = [2, layers // 2, layers - 3]
    from_target = {
        LAYERS: config.get(GIVEN_LAYERS, list, []) or default_layers,
        HIDDEN: config.values.get(HIDDEN) or model.positive_int("hidden_size", MAXIMA["embedding_length"]),
        VOCABULARY: model.values.get("vocab_size"),
    }
    given = JsonObject(config.path, {**config.values, **from_target})
    chosen = given.get(LAYERS, list)
    if len(chosen) != N_FEATURE_LAYERS or any(type(layer) is not int or not 0 <= layer <= layers for layer in chosen):
        what = f"is {printable(repr(chosen), 80)}; it must be {N_FEATURE_LAYERS} of the model's {layers} layers"
        raise given.error(GIVEN_LAYERS, what)
    return folder, given


def add_sizes(config: JsonObject, hp: HParams) -> HParams:
    """Return the hyperparameters with the sizes of the head's input features and output layer."""
    features = N_FEATURE_LAYERS * config.positive_int(HIDDEN, MAXIMA["embedding_length"])
    draft = config.positive_int(DRAFT, hp.n_vocab, hp.n_vocab)
    return replace(hp, sizes={**hp.sizes, "n_features": features, "n_pair": 2 * hp.n_embd, "n_draft": draft})


def metadata(config: JsonObject, hp: HParams) -> dict[str, Field]:  # noqa: ARG001 (one signature for all)
    """Return the layers whose inputs the head reads, and the positions of its norms."""
    return {
        "target_layers": Field.numbers(np.array(config.get(LAYERS, list), np.int32)),
        "target_hidden_size": Field.uint32(config.get(HIDDEN, int)),
        "norm_before_residual": Field.flag(config.get("norm_before_residual", bool, False)),
        "norm_before_fc": Field.flag(config.get("norm_before_fc", bool, False)),
    }


def model_tensors(config: JsonObject, hp: HParams, stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:  # noqa: ARG001
    """Return the head's tensors except the vocabulary maps, named like a model's first layer."""
    tensors = {}
    for name, tensor in stored.items():
        prefix = next((prefix for prefix in ("midlayer.", "layers.0.") if name.startswith(prefix)), None)
        if name not in ("d2t", "t2d"):
            tensors[f"model.layers.0.{name.removeprefix(prefix)}" if prefix else name] = tensor
    return tensors


def draft_vocabulary(stored: Mapping[str, StoredTensor], config: JsonObject, hp: HParams) -> dict[str, SourceTensor]:
    """Return d2t, the token offset of each output row, if the draft vocabulary is smaller than the target's.

    Raises LocalInferError if it maps to a nonexistent token or twice to the same one.
    """
    offsets = stored.get("d2t")
    if offsets is None:
        return {}
    count, tokens = hp.sizes["n_draft"], config.positive_int(VOCABULARY, hp.n_vocab, hp.n_vocab)
    if offsets.dtype not in OFFSETS or offsets.shape != (count,):
        what = f"has type {offsets.dtype} and shape {list(offsets.shape)}; it must be I64 or I32 [{count}]"
        raise offsets.error(what)
    ids = offsets.load().view(OFFSETS[offsets.dtype]) + np.arange(count)
    if ids.min() < 0 or ids.max() >= tokens:
        raise offsets.error(f"maps beyond the vocabulary of {tokens} tokens")
    if len(np.unique(ids)) < count:
        raise offsets.error("maps twice to the same token")
    return {"d2t": SourceTensor("d2t", (count,), I64, partial(to_bytes, ids))}

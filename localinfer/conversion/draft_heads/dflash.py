"""DFlash draft heads (Chen et al., 2026): their config, tensors and metadata, completed by values of the target model.

A head's tokenizer is the target's. Its config.json counts the target's layers whose outputs it reads; GGUF counts those
whose inputs it reads, the next ones.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.checkpoint_folder import CheckpointFolder, JsonObject
from localinfer.conversion.draft_heads.eagle3 import DRAFT, open_target
from localinfer.conversion.hparams import HParams
from localinfer.conversion.tensor_formats import reorder
from localinfer.conversion.tensor_formats.safetensors_file import StoredTensor
from localinfer.errors import UnsupportedError
from localinfer.escaping import printable
from localinfer.gguf.source import Field
from localinfer.graph.properties.hyperparameters import MAXIMA

OWN, LAYERS, BLOCK, MASK, SCALE = (
    "dflash_config", "target_layer_ids", "block_size", "mask_token_id", "input_embedding_scale",
)  # fmt: skip
VALUE_SCALE = "attention_value_scale"  # of the output of attention
LOGIT_SCALE, LOGIT_CAP = "output_multiplier", "final_logit_softcapping"
TAPS = "conv_kernel_size"  # of DFlash 2
MARKOV, OUTPUT, EMBEDDING = "markov_head.markov_w1.weight", "lm_head.weight", "embed_tokens.weight"
FACTORS = {
    SCALE: "embedding_scale", VALUE_SCALE: "attention.value_scale", LOGIT_SCALE: "logit_scale", LOGIT_CAP: LOGIT_CAP,
}  # fmt: skip
MASK_FILE = "mask_embedding.pt"  # in heads for models whose own embedding of the mask token was not trained
MAX_BLOCK, DEFAULT_BLOCK = 256, 16  # tokens
M_ROPE = "target_has_mrope"  # the positions of the target's tokens have several coordinates
UNSUPPORTED = {"markov_head_type": "vanilla"}


def read_target(config: JsonObject, target: Path | None) -> tuple[CheckpointFolder, JsonObject]:
    """Return the directory of the target model, and the head's config with its nested values at the top level.

    Raises UsageError if no target is given, UnsupportedError for a head with an embedding of its mask token,
    LocalInferError if the head does not belong to the target.
    """
    folder, model = open_target(config, target, "a DFlash")
    if (mask := config.path.with_name(MASK_FILE)).is_file():
        what = "an embedding of the mask token in a file of its own is not supported"
        raise UnsupportedError(f"{printable(str(mask))}: {what}")
    own = config.child(OWN)
    values = {**config.values, **{key: value for key, value in own.values.items() if value is not None}}
    for key, usual in UNSUPPORTED.items():
        if values.get(key) and values[key] != usual:
            raise config.error(key, f"{printable(repr(values[key]), 40)} is not supported", UnsupportedError)
    n = model.positive_int("hidden_size", MAXIMA["embedding_length"])
    if config.positive_int("hidden_size", MAXIMA["embedding_length"]) != n:
        what = f"is {config.values['hidden_size']}; it must be {n}, that of its target model"
        raise config.error("hidden_size", what)
    count = model.positive_int("num_hidden_layers", MAXIMA["block_count"])
    if values.get("swa_window_size"):
        values["sliding_window"] = values["swa_window_size"]
    if values.get("use_swa"):
        values["use_sliding_window"] = True
        values["layer_types"] = ["sliding_attention"] * config.get("num_hidden_layers", int)
    rope = model.child("rope_parameters" if model.values.get("rope_parameters") else "rope_scaling")
    values.setdefault("vocab_size", model.values.get("vocab_size"))
    given = JsonObject(config.path, {**values, M_ROPE: "mrope_section" in rope.values})
    chosen = given.get(LAYERS, list)
    if not chosen or any(type(layer) is not int or not 0 <= layer < count for layer in chosen):
        raise given.error(LAYERS, f"is {printable(repr(chosen), 80)}; it must be some of the model's {count} layers")
    return folder, given


def add_sizes(config: JsonObject, hp: HParams) -> HParams:
    """Return the hyperparameters with the sizes of the head's input features and output layer."""
    features, draft = len(config.get(LAYERS, list)) * hp.n_embd, config.positive_int(DRAFT, hp.n_vocab, hp.n_vocab)
    return replace(hp, sizes={**hp.sizes, "n_features": features, "n_draft": draft})


def metadata(config: JsonObject, hp: HParams) -> dict[str, Field]:
    """Return the layers whose inputs the head reads, the number of tokens of a block, and factors of activations."""
    fields = {
        "target_layers": Field.numbers(np.array(config.get(LAYERS, list), np.int32) + 1),
        "block_size": Field.uint32(config.positive_int(BLOCK, MAX_BLOCK, DEFAULT_BLOCK)),
    }
    for key, name in FACTORS.items():
        if config.values.get(key):
            fields[name] = Field.float32(config.positive_float(key))
    for key in ("causal", "is_causal"):  # the second one takes precedence
        if config.values.get(key) is not None:
            fields["attention.causal"] = Field.flag(config.get(key, bool))
    if config.get(M_ROPE, bool):  # all pairs rotate by the first coordinate
        fields["rope.dimension_sections"] = Field.numbers(np.array([hp.head_dim // 2, 0, 0, 0], np.int32))
    return fields


def token_fields(config: JsonObject, n_vocab: int) -> dict[str, Field]:
    """Return the id of the mask token, which the target's tokenizer need not name."""
    id = config.get(MASK, int)
    if not 0 <= id < n_vocab:
        raise config.error(MASK, f"is {id}; it must be a token of the vocabulary")
    return {"tokenizer.ggml.mask_token_id": Field.uint32(id)}


def model_tensors(config: JsonObject, hp: HParams, stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return the head's tensors except the vocabulary maps. Layers are named like a model's, other tensors without a
    prefix.

    A DSpark head's output layer of the whole vocabulary is the model's, and left out. But readers take an embedding in
    the head's file for its output layer, so a head with its own embedding keeps both.
    """
    tensors = {name_in_head(name): tensor for name, tensor in stored.items()}
    if not config.get("has_embed_tokens", bool, True):
        tensors.pop(EMBEDDING, None)
    if hp.sizes["n_draft"] < hp.n_vocab and "d2t" not in tensors:
        what = f"is {hp.sizes['n_draft']} of {hp.n_vocab} tokens; there is no tensor d2t that maps them"
        raise config.error(DRAFT, what)
    is_the_models = hp.sizes["n_draft"] == hp.n_vocab and EMBEDDING not in tensors and MARKOV in tensors
    left_out = ("d2t", "t2d", OUTPUT) if is_the_models else ("d2t", "t2d")
    return {name: tensor for name, tensor in tensors.items() if name not in left_out}


def with_rope(
    architecture: Architecture, version2: Architecture | None = None
) -> Callable[[JsonObject], Architecture]:
    """Return a function of a head's config that returns the architecture for it, `version2` for one of DFlash 2. If
    rope rotates adjacent values, its rows are in another order, because readers rotate halves."""
    reorders = {
        "attn_q": reorder.halve_query_pairs, "attn_k": reorder.halve_key_pairs,
        "attn_q_norm": reorder.halve_norm_pairs, "attn_k_norm": reorder.halve_norm_pairs,
    }  # fmt: skip

    def find(config: JsonObject) -> Architecture:
        values = {**config.values, **config.child(OWN).values}
        chosen = version2 if version2 and values.get(TAPS) else architecture
        return chosen if values.get("rope_is_neox_style", True) else replace(chosen, reorder=reorders)

    return find


def name_in_head(name: str) -> str:
    """Return the name of a tensor: of layers with "model.", of others without."""
    name = name.removeprefix("model.").replace("confidence_proj.", "confidence_head.proj.")
    return f"model.{name}" if name.startswith("layers.") else name


def find_markov(stored: Mapping[str, StoredTensor]) -> StoredTensor | None:
    """Return the first matrix of a Markov head, if there is one."""
    return next((tensor for name, tensor in stored.items() if name_in_head(name) == MARKOV), None)

"""The description of an architecture for conversion: its tensors, and the metadata that only it has.

Tensors have GGUF's names, without ".weight" and without the layer number. tensor_mapping.py maps a checkpoint's
names to them, and tensor_shapes.py defines their shapes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.hparams import HParams, LayerOverrides
from localinfer.conversion.tensor_formats.reorder import Reorder
from localinfer.conversion.tensor_formats.safetensors_file import StoredTensor
from localinfer.gguf.source import Field

UNKNOWN = "TODO"  # a name or size that the draft of an architecture leaves to its user


def keep_hparams(config: JsonObject, hparams: HParams) -> HParams:  # noqa: ARG001
    """Return the hyperparameters unchanged."""
    return hparams


def no_adapted_keys(config: JsonObject) -> dict[str, Any]:  # noqa: ARG001 (one signature for all)
    """Return no values."""
    return {}


def no_metadata(config: JsonObject, hparams: HParams) -> dict[str, Field]:  # noqa: ARG001 (one signature for all)
    """Return no metadata."""
    return {}


def keep_tensors(stored: Mapping[str, StoredTensor], hparams: HParams) -> dict[str, StoredTensor]:  # noqa: ARG001
    """Return the tensors unchanged."""
    return dict(stored)


def no_overrides(config: JsonObject, hparams: HParams) -> tuple[LayerOverrides, ...]:  # noqa: ARG001
    """Return no layer overrides."""
    return ()


def no_windows(config: JsonObject, count: int) -> Sequence[bool]:  # noqa: ARG001
    """Return no flags: GGUF has none for MTP layers."""
    return ()


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """An architecture in tables. `name` is GGUF's; `layer_tensors` are the tensors of every layer, `model_tensors`
    those outside the layers in addition to the usual ones.
    """

    name: str

    # Tensors by GGUF's names, without ".weight" and layer number.
    layer_tensors: tuple[str, ...]
    layer_group: str = "blk"  # with which the names of layer tensors begin
    layer_modules: tuple[str, ...] = ()  # modules with as many layers each, if there are several
    decoder_tensors: tuple[str, ...] = ()  # of each layer of a decoder beside the encoder, which has the others
    first_layer_tensors: tuple[str, ...] = ()  # further tensors of the first layer, which others may have, too
    not_first_layer_tensors: tuple[str, ...] = ()  # further tensors of every layer but the first
    moe_tensors: tuple[str, ...] = ()  # further tensors of layers with experts
    dense_tensors: tuple[str, ...] = ()  # further tensors of layers without experts, such as leading dense layers
    layer_type_tensors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # further tensors, by layer type
    optional_layer_tensors: tuple[str, ...] = ()  # each exists in all layers or in none
    output_norm: str = "output_norm"  # "": it has no weights
    model_tensors: tuple[str, ...] = ()
    optional_model_tensors: tuple[str, ...] = ()
    shapes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # overrides of tensor_shapes.py
    no_weight_suffix: tuple[str, ...] = ("ssm_a", "ssm_d")  # tensors whose names do not end in ".weight"
    layer_numbers: Mapping[str, str] = field(default_factory=dict)  # stored numbers (of layers: {}) -> whole GGUF keys
    integers: Mapping[str, str] = field(default_factory=dict)  # stored arrays of integers -> whole GGUF keys
    final_shapes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # GGUF shapes, if stored ones differ
    reorder: Mapping[str, Reorder] = field(default_factory=dict)  # changes the order of rows or columns
    fused_sources: Mapping[str, str] = field(default_factory=dict)  # tensor -> fused checkpoint tensor it may be in
    name_map_architecture: str = ""  # the architecture with the same names, if the `gguf` package lacks this one
    tensor_names: Mapping[str, str] = field(default_factory=dict)  # names that the `gguf` package lacks
    f32_tensors: tuple[str, ...] = ()  # matrices in F32, whatever a checkpoint has
    mxfp4_rows: Mapping[str, slice] = field(default_factory=dict)  # rows of tensors that may be stored as MXFP4
    character_bpe_model: str = ""  # tokenizer.ggml.model of an architecture with character-level BPE
    chat_template: str = ""  # the name of a built-in template, where checkpoints have none
    end_of_turn: str = ""  # the token that ends a turn, where checkpoints do not state it
    ternary_tensors: tuple[str, ...] = ()  # matrices whose values are rounded to -m, 0 and m before use

    is_draft_head: bool = False  # a draft head, which may use the target's embedding and output layer
    is_encoder: bool = False  # attention is bidirectional, and there is no output layer
    is_diffusion: bool = False  # attention is bidirectional, and the output layer predicts masked tokens
    has_learned_positions: bool = False
    copied_tensors: Mapping[str, str] = field(default_factory=dict)  # unused tensors that readers require -> source
    ignored_tensors: str = ""  # a pattern of names that are ignored
    adapt_tensors: Callable[[Mapping[str, StoredTensor], HParams], dict[str, StoredTensor]] = keep_tensors
    tensor_prefix: str = ""  # prefix of all names in the checkpoints of some classes

    ffn_multiplier: int | None = None  # feed-forward length / embedding length, if config.json does not specify it
    norm: str = "rms"  # or "layer"
    norm_offset: float = 0.0  # added to the norm weights of a checkpoint
    decay_sign: float = -1.0  # of the decay rates, ssm_a, whose logarithms a checkpoint has
    norm_offsets: Mapping[str, float] = field(default_factory=dict)  # other offsets, by kind of norm
    activations: tuple[str, ...] = ("silu", "swish")
    has_attention: bool = True
    has_rope: bool = True
    has_partial_rope: bool = False  # whether rope may rotate only some dimensions of a head
    has_mtp: bool = False  # whether there may be multi-token prediction layers
    ignores_mtp: bool = False  # whether they are ignored
    mtp_windows: Callable[[JsonObject, int], Sequence[bool]] = no_windows  # of so many MTP layers
    truncates_yarn: bool = True  # whether the limits of YaRN's ramp are rounded to whole pairs
    window_period: int | None = None  # all layers but the last of each period have a window (0: all; None: none)
    may_have_window: bool = False  # some checkpoints have a window, which llama.cpp does not support
    first_is_full: bool = False  # the first layer of a period has full attention, instead of the last
    writes_window_flags: bool = False  # whether GGUF needs a window flag for each layer
    has_attention_scale: bool = False  # whether GGUF has a key for a scale of scores that is not the default
    has_window_rope: bool = False  # whether sliding-window layers have separate rope parameters

    # Keys of config.json.
    config_parts: tuple[str, ...] = ()  # nested objects whose keys count as those of config.json
    key_aliases: Mapping[str, str] = field(default_factory=dict)  # canonical key -> the key that takes precedence
    adapted_keys: Callable[[JsonObject], dict[str, Any]] = no_adapted_keys  # values of keys that have another form
    float_keys: Mapping[str, str] = field(default_factory=dict)  # floats -> GGUF's keys
    folded_multipliers: tuple[str, ...] = ()  # multipliers that `read_hparams` folds into the weights
    written_keys: tuple[str, ...] = ()  # keys that `metadata` writes, which others do not support
    bool_keys: Mapping[str, str] = field(default_factory=dict)  # bools -> GGUF's keys
    int_keys: Mapping[str, str] = field(default_factory=dict)  # integers, which may be 0 -> GGUF's keys
    read_hparams: Callable[[JsonObject, HParams], HParams] = keep_hparams  # adds what only this architecture has
    metadata: Callable[[JsonObject, HParams], dict[str, Field]] = no_metadata  # computed metadata
    layer_overrides: Callable[[JsonObject, HParams], tuple[LayerOverrides, ...]] = no_overrides
    own_fields: Mapping[str, Field] = field(default_factory=dict)  # whole GGUF keys that all checkpoints get
    required_values: Mapping[str, Any] = field(default_factory=dict)  # the only supported values of some keys
    defaults: Mapping[str, Any] = field(default_factory=dict)  # values of missing keys

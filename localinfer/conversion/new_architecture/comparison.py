"""Compares a checkpoint with a known architecture: tensors by name and shape, and the keys of config.json.

The conversion itself is asked: its tensor mapping, its shapes, and its readers of config.json, which are watched.
"""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from localinfer.conversion import tensor_mapping
from localinfer.conversion.architecture import Architecture
from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.config_key_aliases import normalize_keys
from localinfer.conversion.draft_heads import mtp
from localinfer.conversion.hparams import HParams
from localinfer.conversion.metadata import config_hyperparameters
from localinfer.conversion.metadata.config_hyperparameters import UNSUPPORTED_KEYS
from localinfer.conversion.new_architecture.survey import Survey, pattern
from localinfer.conversion.tensors import BLOCK, shape_in_checkpoint
from localinfer.errors import LocalInferError, UsageError

OTHER_NAMES = {  # of canonical keys of config.json, which no architecture has yet
    "hidden_size": ("d_model", "dim", "model_dim", "embed_dim", "n_embed"),
    "intermediate_size": ("d_ff", "ffn_dim", "hidden_dim", "ffn_intermediate_size", "mlp_hidden_size"),
    "num_hidden_layers": ("n_layers", "num_blocks", "depth"),
    "num_attention_heads": ("n_heads", "num_heads"),
    "num_key_value_heads": ("n_kv_heads", "kv_n_heads", "num_query_groups", "multi_query_group_num"),
    "max_position_embeddings": ("max_seq_len", "max_sequence_length", "seq_length", "seq_len", "model_max_length"),
    "vocab_size": ("padded_vocab_size", "n_vocab"),
}
OTHER_EPS = ("rms_eps", "rmsnorm_eps", "norm_epsilon", "layernorm_epsilon", "rms_norm_eps", "layer_norm_eps")
UNNAMED = "?"  # before the name of a tensor that has none in GGUF


class FoundTensor(NamedTuple):
    """A tensor of the checkpoint: its name there, its shape if it is known, and the layers that have it, none for those
    outside of layers."""

    name: str
    shape: tuple[int, ...] | None
    layers: tuple[int, ...]


class Reading(NamedTuple):
    """What the reader of an architecture makes of config.json.

    `changes` are fields that the architecture needs to read it, `unsupported` keys whose values change what is
    computed, `problem` what is wrong even then, and `read` the keys that are read.
    """

    hparams: HParams | None
    changes: Mapping[str, Any]
    unsupported: tuple[str, ...]
    problem: str
    read: frozenset[str]


class WatchedValues(dict[str, Any]):
    """The values of config.json, which record the keys that are read."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def __contains__(self, key: object) -> bool:
        self.read.add(str(key))
        return super().__contains__(key)

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)


@dataclass(frozen=True, eq=False, kw_only=True)
class Comparison:
    """What distinguishes a checkpoint from an architecture. Kinds are GGUF's names of tensors, without layer and
    ".weight".

    `architecture` has no experts if the checkpoint has no router. `known` kinds are as expected; `missing` ones are
    required; `unexpected` ones have a name in GGUF, but the architecture lacks them, `unnamed` tensors have none.
    `partial` ones are in some layers only, though the architecture has them in all. `shapes` are the expected ones of
    tensors that have others. `unread` are keys of config.json that may matter.
    """

    architecture: Architecture
    known: Mapping[str, FoundTensor]
    missing: tuple[str, ...]
    lacks_experts: bool
    unexpected: Mapping[str, FoundTensor]
    unnamed: tuple[FoundTensor, ...]
    partial: Mapping[str, FoundTensor]
    shapes: Mapping[str, tuple[int, ...]]
    reading: Reading
    unread: tuple[str, ...]

    @property
    def distance(self) -> float:
        """A weighted number of differences; that of keys which are not read is below 1."""
        reading = self.reading
        tensors = 4 * len(self.unnamed) + 3 * (len(self.missing) + self.lacks_experts + len(self.unexpected))
        tensors += 2 * len(self.partial)
        values = len(reading.changes) + len(reading.unsupported) + 3 * bool(reading.problem)
        return tensors + 4 * len(self.shapes) + values + len(self.unread) / (1 + len(self.unread))

    @property
    def is_near(self) -> bool:
        """Whether most tensors are as expected."""
        return len(self.known) > len(self.unnamed) + len(self.unexpected) + len(self.missing)

    @property
    def is_alike(self) -> bool:
        """Whether tensors and configuration may be those of the architecture."""
        return self.distance < 1 and not self.unread


def compare(survey: Survey, architecture: Architecture, own_name: str = "") -> Comparison:
    """Compare a checkpoint with an architecture. The `gguf` package may have tensor names of the architecture
    `own_name`, which the checkpoint is to get."""
    names = map_names(survey, architecture, own_name)
    lacks_experts = bool(architecture.moe_tensors) and not any(kind.startswith("ffn_gate_inp") for kind in names)
    if lacks_experts:
        dense = (*architecture.layer_tensors, *architecture.dense_tensors)
        architecture = replace(architecture, moe_tensors=(), dense_tensors=(), layer_tensors=dense)
    reading = read_config(survey.config, architecture)
    required = required_kinds(survey, architecture, reading.hparams)
    sources = {kind: source_kind(kind, architecture, names) for kind in (*required, *optional_kinds(architecture))}
    used = {*sources.values(), *(f"{kind}.{end}" for kind in architecture.mxfp4_rows for end in ("blocks", "scales"))}
    known = {kind: tensor for kind, tensor in names.items() if kind in used}
    missing = [kind for kind in required if sources[kind] not in names]
    missing += [name for name in architecture.layer_numbers if name not in {*survey.layers, *survey.tensors}]
    missing += {*architecture.integers} - {tensor_mapping.name_in_text_model(name) for name in survey.tensors}
    return Comparison(
        architecture=architecture,
        known=known,
        missing=tuple(dict.fromkeys(missing)),
        lacks_experts=lacks_experts,
        unexpected={kind: each for kind, each in names.items() if kind not in used and not kind.startswith(UNNAMED)},
        unnamed=tuple(each for kind, each in names.items() if kind.startswith(UNNAMED)),
        partial={kind: each for kind, each in known.items() if is_partial(kind, each, architecture, reading.hparams)},
        shapes=dict(other_shapes(architecture, reading.hparams, known, sources)) if survey.has_shapes else {},
        reading=reading,
        unread=tuple(key for key in survey.relevant_keys if key not in reading.read),
    )


# --- tensors ---


def map_names(survey: Survey, architecture: Architecture, own_name: str) -> dict[str, FoundTensor]:
    """Return the tensors by kind. Those without a name in GGUF, or with that of another tensor of the same layer, have
    UNNAMED and their own name."""
    selected = tensor_mapping.select_tensors(architecture, survey.tensors)
    stacked = tensor_mapping.stack_members(tensor_mapping.text_model_tensors(selected))
    first, second = (
        tensor_mapping.gguf_name_map(name, survey.n_layer)
        for name in (architecture.name_map_architecture or architecture.name, own_name)
    )
    table = {**architecture.tensor_names, **(mtp.TENSOR_NAMES if architecture.has_mtp else {})}
    found: dict[str, FoundTensor] = {}
    for name, tensor in stacked.items():
        if pattern(name) in architecture.layer_numbers or name in architecture.integers:
            continue
        own = tensor_mapping.architecture_name(name, table)
        renamed = own or first(name) or tensor_mapping.OUTPUT_NAMES.get(name) or second(name)
        kind = BLOCK.sub("", renamed).removesuffix(".weight") if renamed else ""
        layers = survey.layers_of(tensor.name)
        if kind in found and layers and not {*layers} & {*found[kind].layers}:  # another name in other layers
            found[kind] = found[kind]._replace(layers=tuple(sorted((*layers, *found[kind].layers))))
            continue
        key = kind if kind and kind not in found else f"{UNNAMED}{name}"
        found[key] = FoundTensor(tensor.name, tensor.shape if survey.has_shapes else None, layers)
    return found


def source_kind(kind: str, architecture: Architecture, present: Mapping[str, FoundTensor]) -> str:
    """Return the kind of the checkpoint tensor that contains one, which may be a fused tensor."""
    return kind if kind in present else architecture.fused_sources.get(kind, kind)


def required_kinds(survey: Survey, architecture: Architecture, hparams: HParams | None) -> tuple[str, ...]:
    """Return the kinds that an architecture requires; without hyperparameters, those of layers of all types."""
    tied = survey.relevant_keys.get("tie_word_embeddings", architecture.defaults.get("tie_word_embeddings", False))
    model = ["token_embd", *architecture.model_tensors, *([] if tied else ["output"])]
    model += [architecture.output_norm] * bool(architecture.output_norm)
    types = set(hparams.layer_types) if hparams else {*architecture.layer_type_tensors}
    of_types = [kind for type in sorted(types) for kind in architecture.layer_type_tensors.get(type, ())]
    all_have_experts = hparams is not None and all(hparams.has_experts(layer) for layer in range(hparams.n_layer))
    dense = () if architecture.moe_tensors and all_have_experts else architecture.dense_tensors
    kinds = (*model, *architecture.layer_tensors, *architecture.not_first_layer_tensors, *of_types, *dense)
    kinds = (*kinds, *architecture.moe_tensors)
    return tuple(kind for kind in kinds if hparams is None or hparams.n_ff_shared or not kind.endswith("_shexp"))


def is_partial(kind: str, tensor: FoundTensor, architecture: Architecture, hparams: HParams | None) -> bool:
    """Return whether layers lack a tensor that the architecture has in all layers."""
    if hparams is None or kind not in architecture.layer_tensors:
        return False
    return any(
        layer not in tensor.layers and kind not in hparams.missing_tensors(layer) for layer in range(hparams.n_layer)
    )


def optional_kinds(architecture: Architecture) -> tuple[str, ...]:
    """Return the kinds that a checkpoint may have."""
    of_mtp = (*mtp.REQUIRED_TENSORS, *mtp.OPTIONAL_TENSORS) if architecture.has_mtp else ()
    return (*architecture.optional_layer_tensors, *architecture.optional_model_tensors, "output", *of_mtp)


def other_shapes(
    architecture: Architecture, hparams: HParams | None, known: Mapping[str, FoundTensor], sources: Mapping[str, str]
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the kinds whose tensors have another shape than the architecture expects, and that shape."""
    for kind, source in sources.items():
        tensor = known.get(source)
        if hparams is None or tensor is None or (tensor.layers and tensor.layers[0] >= hparams.n_layer):
            continue
        of_layer = hparams.for_layer(tensor.layers[0]) if tensor.layers else hparams
        try:
            expected = shape_in_checkpoint(kind, source, architecture, of_layer)
        except UsageError:  # a size that this configuration lacks
            continue
        if expected != tensor.shape:
            yield source, expected


# --- config.json ---


def read_config(config: JsonObject, architecture: Architecture) -> Reading:
    """Read config.json as an architecture does, but do not stop at values that it does not support."""
    config, adapted = adapted_config(config, architecture)
    keys = normalize_keys(config, architecture.key_aliases, architecture.defaults, architecture.config_parts)
    if aliases := needed_aliases(architecture, keys):
        aliases = {**architecture.key_aliases, **aliases}
        keys = normalize_keys(config, aliases, architecture.defaults, architecture.config_parts)
    values = WatchedValues(keys.values)
    changes, unsupported = needed_changes(architecture, keys)
    changes |= {"key_aliases": aliases} if aliases else {}
    for key in unsupported:
        values.pop(key, None)
    hparams, problem = None, ""
    tolerant = replace(architecture, **changes, has_partial_rope=True, has_attention_scale=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            hparams = config_hyperparameters.read_hparams(tolerant, replace(keys, values=values))
            config_hyperparameters.fields(tolerant, replace(keys, values=values), hparams)
        except LocalInferError as error:
            problem = str(error).removeprefix(f"{config.path}: ")
    if hparams and not architecture.has_partial_rope and hparams.rope.n_rot != hparams.head_dim_full:
        changes["has_partial_rope"] = True
    scale = hparams and config_hyperparameters.attention_scale(tolerant, keys, hparams)
    if scale and not architecture.has_attention_scale:
        changes["has_attention_scale"] = True
    if any("sliding_window" in str(each.message) for each in caught):
        changes["may_have_window"] = True
    read = {keys.aliases.get(key, key) for key in values.read} | {*unsupported} | adapted
    return Reading(hparams, changes, tuple(unsupported), problem, frozenset(read))


def adapted_config(config: JsonObject, architecture: Architecture) -> tuple[JsonObject, set[str]]:
    """Return config.json with the keys that the architecture has in another form, and those that it reads for them."""
    values = WatchedValues(config.values)
    try:
        adapted = architecture.adapted_keys(replace(config, values=values))
    except LocalInferError:
        return config, set()
    return replace(config, values={**config.values, **adapted}), {*values.read}


def needed_aliases(architecture: Architecture, keys: JsonObject) -> dict[str, str]:
    """Return the keys that stand for canonical ones which are missing."""
    found, eps = {}, config_hyperparameters.EPS[architecture.norm]
    for canonical, names in {**OTHER_NAMES, eps: OTHER_EPS}.items():
        if canonical not in keys.values and (name := next((name for name in names if name in keys.values), None)):
            found[canonical] = name
    return found


def needed_changes(architecture: Architecture, keys: JsonObject) -> tuple[dict[str, Any], list[str]]:
    """Return the fields that must change for values of config.json, and keys that change what is computed."""
    changes: dict[str, Any] = {}
    activation = keys.values.get("hidden_act")
    if isinstance(activation, str) and activation not in architecture.activations:
        changes["activations"] = (activation,)
    for field in ("int_keys", "bool_keys"):
        written: Mapping[str, str] = getattr(architecture, field)
        if absent := written.keys() - keys.values.keys():
            changes[field] = {key: name for key, name in written.items() if key not in absent}
    required = architecture.required_values
    refused = [key for key, value in required.items() if keys.values.get(key, value) != value]
    if refused:
        changes["required_values"] = {key: value for key, value in required.items() if key not in refused}
    accepted = (*architecture.float_keys, *architecture.folded_multipliers)
    harmless = {key: value for key, value in UNSUPPORTED_KEYS.items() if key not in accepted}
    refused += [key for key, value in harmless.items() if keys.values.get(key, value) != value]
    return changes, refused

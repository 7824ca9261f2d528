"""Rotary position embeddings: config.json's parameters and scaling, and GGUF's keys for them.

config.json has rope_theta and rope_scaling, or since transformers 5 rope_parameters, an object per layer type where
there are several.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.errors import UnsupportedError
from localinfer.escaping import printable
from localinfer.gguf.source import Field
from localinfer.graph.properties.hyperparameters import DEFAULT_MAXIMUM
from localinfer.graph.properties.rope import plain_frequencies

Factors: TypeAlias = NDArray[np.float32]
ALPHA_CONTEXT = 256 * 1024  # context length of models with `alpha`


@dataclass(frozen=True, eq=False)
class RopeMetadata:
    """Rope parameters. The first `n_rot` values of a head are rotated; `fields` are the keys after `rope.scaling.`.

    `factors` divide the frequency of each pair, (n_rot / 2,), by tensor name. `n_ctx` is the context length if
    scaling changes it.
    """

    n_rot: int
    theta: float
    fields: Mapping[str, Field] = field(default_factory=dict)
    factors: Mapping[str, Factors] = field(default_factory=dict)
    n_ctx: int | None = None


def read_ropes(
    config: JsonObject, head_dims: tuple[int, int], n_ctx: int, *, window_rope: bool = False, truncates: bool = True
) -> tuple[RopeMetadata, RopeMetadata]:
    """Return the rope parameters of full-attention layers and of sliding-window layers; head_dims are their head
    lengths.

    Raises UnsupportedError naming a scaling type that GGUF has no keys for.
    """
    parameters = config.child("rope_parameters")
    fraction = config.values.get("partial_rotary_factor")
    common = {} if fraction is None else {"partial_rotary_factor": fraction}
    if parameters.child("full_attention").values:
        full, windows = parameters.child("full_attention"), parameters.child("sliding_attention")
    elif parameters.values:
        full, windows = parameters, JsonObject(config.path, {"rope_theta": parameters.values.get("rope_theta")})
    else:
        scaling = config.child("rope_scaling")
        theta = config.values.get("rope_theta")
        name = scaling.prefix if scaling.values else ""
        full = JsonObject(config.path, {"rope_theta": theta, **scaling.values}, name)
        windows = JsonObject(config.path, {"rope_theta": config.values.get("rope_local_base_freq", theta)})
    for each in (full, windows):
        if each.values.get("rope_type", each.values.get("type")) == "yarn":
            reject_other_ramp(each, truncates)
    ropes = [
        read_rope(config, JsonObject(config.path, common | dict(each.values), each.prefix), head_dim, n_ctx)
        for each, head_dim in zip((full, windows), head_dims, strict=True)
    ]
    return ropes[0], ropes[window_rope]


def mrope_sections(config: JsonObject, usual: Sequence[int] = ()) -> Field:
    """Return the number of pairs that rotate by each coordinate of a position (M-RoPE), padded to four numbers."""
    sections: Sequence[Any] = usual
    for table in (config.child("rope_scaling"), config.child("rope_parameters")):
        for key in ("xdrope_section", "mrope_section"):
            sections = table.get(key, list, sections)
    if not 3 <= len(sections) <= 4 or not all(type(each) is int and each >= 0 for each in sections):
        raise config.error("mrope_section", "must be three numbers of pairs")
    return Field.numbers(np.array([*sections, 0][:4], np.int32))


def read_rope(config: JsonObject, table: JsonObject, head_dim: int, n_ctx: int) -> RopeMetadata:
    """Return the rope parameters of one kind of layers. Raises LocalInferError for an invalid value."""
    fraction = table.positive_float("partial_rotary_factor", 1.0, maximum=1.0 + 1e-9)
    kind = table.get("rope_type", str, table.get("type", str, "default"))
    if kind == "proportional":
        return proportional(table, head_dim, fraction)
    n_rot = int(fraction * head_dim)
    if n_rot % 2 or not n_rot:
        raise table.error("partial_rotary_factor", f"rotates {n_rot} values of a head; must be a positive even number")
    plain = RopeMetadata(n_rot, table.positive_float("rope_theta", 10_000.0))
    if kind == "ntk" and config.get("model_type", str, "") != "new":  # other models may mean another formula
        raise table.error("rope_type", "'ntk' is supported in GTE only", UnsupportedError)
    if kind not in SCALING_TYPES:
        what = f"{printable(repr(kind), 40)} is not supported (only {', '.join(SCALING_TYPES)})"
        raise table.error("rope_type", what, UnsupportedError)
    original = config.get("original_max_position_embeddings", int, n_ctx)
    length = table.positive_int("original_max_position_embeddings", DEFAULT_MAXIMUM, original)
    return SCALING_TYPES[kind](table, plain, length, n_ctx)


def proportional(table: JsonObject, head_dim: int, fraction: float) -> RopeMetadata:
    """Return rope parameters that rotate only a fraction of the pairs of a head; factors of 1e30 stop the others."""
    n_rotated = int(fraction * head_dim / 2)
    factors = np.array([1.0] * n_rotated + [1e30] * (head_dim // 2 - n_rotated), np.float32)
    return RopeMetadata(head_dim, table.positive_float("rope_theta", 10_000.0), factors={"rope_freqs.weight": factors})


# Scaling types. Arguments: config object, unscaled rope, original context length, context length.


def default(table: JsonObject, plain: RopeMetadata, original_n_ctx: int, n_ctx: int) -> RopeMetadata:  # noqa: ARG001 (one signature for all)
    return plain


def linear(table: JsonObject, plain: RopeMetadata, original_n_ctx: int, n_ctx: int) -> RopeMetadata:  # noqa: ARG001
    """Return linear scaling: positions are divided by a factor."""
    fields = {"type": Field.text("linear"), "factor": Field.float32(table.positive_float("factor"))}
    return RopeMetadata(plain.n_rot, plain.theta, fields)


def ntk(table: JsonObject, plain: RopeMetadata, original_n_ctx: int, n_ctx: int) -> RopeMetadata:  # noqa: ARG001
    """Return the NTK scaling of GTE: the base is multiplied by the factor, and positions are divided by its power
    2 / n_rot. Source: the class `NTKScalingRotaryEmbedding` of its checkpoints.
    """
    if table.values.get("mixed_b") is not None:
        raise table.error("mixed_b", "is not supported", UnsupportedError)
    factor = table.positive_float("factor")
    fields = {"type": Field.text("linear"), "factor": Field.float32(factor ** (2 / plain.n_rot))}
    return RopeMetadata(plain.n_rot, plain.theta * factor, fields)


def yarn(table: JsonObject, plain: RopeMetadata, original_n_ctx: int, n_ctx: int) -> RopeMetadata:  # noqa: ARG001
    """Return YaRN scaling (Peng et al., 2023): low-frequency pairs are interpolated, and attention scores grow with
    the factor.

    A reader of GGUF multiplies queries and keys by `(1 + 0.1 ln factor) * attn_factor`, which is divided by
    `1 + 0.1 * yarn_log_multiplier * ln factor` if the file has that key. config.json states the same multiplier as
    `attention_factor`, or as the ratio `(1 + 0.1 mscale ln factor) / (1 + 0.1 mscale_all_dim ln factor)`.
    """
    factor = table.positive_float("factor")
    fields = {
        "type": Field.text("yarn"),
        "factor": Field.float32(factor),
        "original_context_length": Field.uint32(original_n_ctx),
    }
    for key in ("beta_fast", "beta_slow"):
        if table.values.get(key) is not None:
            fields[f"yarn_{key}"] = Field.float32(table.positive_float(key))
    default_growth = attention_growth(factor, 1.0)
    mscale, mscale_all_dim = table.get("mscale", float, 0.0), table.get("mscale_all_dim", float, 0.0)
    if table.values.get("attention_factor") is not None:
        growth = table.positive_float("attention_factor")
        fields["yarn_attn_factor"] = Field.float32(growth)
    elif mscale == 1.0 and mscale_all_dim:
        fields["yarn_log_multiplier"] = Field.float32(mscale_all_dim)
        growth = default_growth
    else:
        growth = (
            attention_growth(factor, mscale) / attention_growth(factor, mscale_all_dim)
            if mscale and mscale_all_dim
            else default_growth
        )
    if not math.isclose(growth, default_growth):
        fields["attn_factor"] = Field.float32(growth / default_growth)
    return RopeMetadata(plain.n_rot, plain.theta, fields)


def reject_other_ramp(table: JsonObject, truncates: bool) -> None:
    """Raise UnsupportedError if YaRN's ramp is truncated differently from the architecture; GGUF has no key for it."""
    if table.get("truncate", bool, True) != truncates:
        raise table.error("truncate", f"{str(not truncates).lower()} is not supported", UnsupportedError)


def attention_growth(factor: float, multiplier: float) -> float:
    """Return YaRN's attention factor (Peng et al., 2023): 0.1 * multiplier * ln(factor) + 1."""
    return 0.1 * multiplier * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def llama3(table: JsonObject, plain: RopeMetadata, original_n_ctx: int, n_ctx: int) -> RopeMetadata:  # noqa: ARG001
    """Return Llama 3 scaling: GGUF stores the resulting factor of each pair as a tensor.

    Pairs with at least `high` rotations in the original context are unchanged, pairs with fewer than `low` rotations
    are slowed down by `factor`, and pairs in between are interpolated.
    """
    factor = table.positive_float("factor")
    low, high = table.positive_float("low_freq_factor"), table.positive_float("high_freq_factor")
    if low >= high:
        raise table.error("high_freq_factor", f"is {high:g}; it must be above low_freq_factor, {low:g}")
    rotations = original_n_ctx * plain_frequencies(plain.theta, plain.n_rot) / (2 * math.pi)
    unscaled = np.clip((rotations - low) / (high - low), 0.0, 1.0)
    factors = (1.0 / ((1.0 - unscaled) / factor + unscaled)).astype(np.float32)
    return RopeMetadata(plain.n_rot, plain.theta, factors={"rope_freqs.weight": factors})


def longrope(table: JsonObject, plain: RopeMetadata, original_n_ctx: int, n_ctx: int) -> RopeMetadata:
    """Return LongRoPE scaling (Ding et al., 2024): one factor per pair for short contexts, and another for contexts
    longer than in training.
    """
    factors = {
        f"rope_factors_{kind}.weight": read_pair_factors(table, f"{kind}_factor", plain.n_rot // 2)
        for kind in ("long", "short")
    }
    ratio = table.positive_float("factor", n_ctx / original_n_ctx)
    default_factor = math.sqrt(1 + math.log(ratio) / math.log(original_n_ctx)) if ratio > 1.0 else 1.0
    if "long_mscale" in table.values:  # Phi-3.5-MoE states both scales
        default_factor = table.positive_float("long_mscale")
        if table.positive_float("short_mscale", default_factor) != default_factor:
            raise table.error("short_mscale", "a value other than long_mscale is not supported", UnsupportedError)
    fields = {
        "type": Field.text("longrope"),
        "attn_factor": Field.float32(table.positive_float("attention_factor", default_factor)),
        "original_context_length": Field.uint32(original_n_ctx),
    }
    return RopeMetadata(plain.n_rot, plain.theta, fields, factors)


def read_pair_factors(table: JsonObject, key: str, n: int) -> Factors:
    """Return a list of positive numbers, one per pair."""
    values: Sequence[Any] = table.get(key, list)
    numbers = [float(value) for value in values if type(value) in (int, float) and 1e-30 < value < 1e30]
    if len(numbers) < len(values) or len(numbers) != n:
        raise table.error(key, f"must be {n} numbers above 0")
    return np.array(numbers, np.float32)


def dynamic(table: JsonObject, plain: RopeMetadata, original_n_ctx: int, n_ctx: int) -> RopeMetadata:
    """Return dynamic NTK scaling: the base grows only beyond the context length, so it is ignored.

    With `alpha` the base is raised from the start.
    """
    if table.values.get("mrope_section") is not None:
        return xd(table, plain, original_n_ctx, n_ctx)
    if table.values.get("alpha") is None or plain.n_rot == 2:
        return plain
    theta = plain.theta * table.positive_float("alpha") ** (plain.n_rot / (plain.n_rot - 2))
    fields = {
        "type": Field.text("none"),
        "factor": Field.float32(1.0),
        "original_context_length": Field.uint32(ALPHA_CONTEXT),
    }
    return RopeMetadata(plain.n_rot, theta, fields, n_ctx=ALPHA_CONTEXT)


def xd(table: JsonObject, plain: RopeMetadata, original_n_ctx: int, n_ctx: int) -> RopeMetadata:  # noqa: ARG001
    """Return XD-RoPE (Tencent, 2025): as `dynamic` with `alpha`, which readers apply."""
    fields = {
        "type": Field.text("none"),
        "factor": Field.float32(table.positive_float("factor", 1.0)),
        "alpha": Field.float32(table.positive_float("alpha")),
        "original_context_length": Field.uint32(n_ctx),
    }
    return RopeMetadata(plain.n_rot, plain.theta, fields)


SCALING_TYPES: dict[str, Callable[[JsonObject, RopeMetadata, int, int], RopeMetadata]] = {
    "default": default,
    "mrope": default,  # the former name of RoPE with sections
    "linear": linear,
    "ntk": ntk,
    "yarn": yarn,
    "llama3": llama3,
    "longrope": longrope,
    "su": longrope,  # the former name
    "dynamic": dynamic,
    "xdrope": xd,
}

"""Rotary embeddings: how config.json spells them, what it slows them down by, and GGUF's keys for it.

Two spellings: rope_theta and rope_scaling, or since transformers 5 rope_parameters, which is a table for each kind of
layer where there are several.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from localinfer.checkpoint.folder import Table
from localinfer.errors import Unsupported
from localinfer.files.source import Field
from localinfer.plan.keys import MOST
from localinfer.plan.rope import plain_frequencies
from localinfer.text import printable

Factors: TypeAlias = NDArray[np.float32]
ALPHA_CONTEXT = 256 * 1024  # what a model is good for whose base was raised by an alpha


@dataclass(frozen=True, eq=False)
class Rope:
    """The first `n_rot` values of a head turn. `fields` are the keys of its scaling behind `rope.scaling.`.

    `factors` slow each pair down, (n_rot / 2,), and are tensors by these names; `n_ctx` is the length of the context
    where scaling makes another one of it.
    """

    n_rot: int
    theta: float
    fields: Mapping[str, Field] = field(default_factory=dict)
    factors: Mapping[str, Factors] = field(default_factory=dict)
    n_ctx: int | None = None


def read_ropes(
    config: Table, head_dims: tuple[int, int], n_ctx: int, *, window_rope: bool = False, truncates: bool = True
) -> tuple[Rope, Rope]:
    """Those of the layers that see everything, and of the layers with a window, which may have their own; so may be
    the lengths of their heads.

    Raises Unsupported naming a kind of scaling for which GGUF has no keys.
    """
    parameters = config.table("rope_parameters")
    share = config.values.get("partial_rotary_factor")
    common = {} if share is None else {"partial_rotary_factor": share}
    if parameters.table("full_attention").values:
        everything, windows = parameters.table("full_attention"), parameters.table("sliding_attention")
    elif parameters.values:
        everything, windows = parameters, Table(config.path, {"rope_theta": parameters.values.get("rope_theta")})
    else:
        scaling = config.table("rope_scaling")
        theta = config.values.get("rope_theta")
        name = scaling.name if scaling.values else ""
        everything = Table(config.path, {"rope_theta": theta, **scaling.values}, name)
        windows = Table(config.path, {"rope_theta": config.values.get("rope_local_base_freq", theta)})
    for each in (everything, windows):
        if each.values.get("rope_type", each.values.get("type")) == "yarn":
            refuse_other_ramp(each, truncates)
    ropes = [
        read_rope(config, Table(config.path, common | dict(each.values), each.name), head_dim, n_ctx)
        for each, head_dim in zip((everything, windows), head_dims, strict=True)
    ]
    return ropes[0], ropes[window_rope]


def read_rope(config: Table, table: Table, head_dim: int, n_ctx: int) -> Rope:
    share = table.positive("partial_rotary_factor", 1.0, most=1.0 + 1e-9)
    kind = table.get("rope_type", str, table.get("type", str, "default"))
    if kind == "proportional":
        return proportional(table, head_dim, share)
    n_rot = int(share * head_dim)
    if n_rot % 2 or not n_rot:
        raise table.error("partial_rotary_factor", f"makes {n_rot} values of a head turn; they must be pairs")
    plain = Rope(n_rot, table.positive("rope_theta", 10_000.0))
    if kind not in SCALINGS:
        what = f"{printable(repr(kind), 40)} is not supported (only {', '.join(SCALINGS)})"
        raise table.error("rope_type", what, Unsupported)
    original = config.get("original_max_position_embeddings", int, n_ctx)
    length = table.count("original_max_position_embeddings", MOST, original)
    return SCALINGS[kind](table, plain, length, n_ctx)


def proportional(table: Table, head_dim: int, share: float) -> Rope:
    """Only a share of the pairs turns, of all that are in a head: GGUF's factors slow the others down to nothing."""
    turning = int(share * head_dim / 2)
    factors = np.array([1.0] * turning + [1e30] * (head_dim // 2 - turning), np.float32)
    return Rope(head_dim, table.positive("rope_theta", 10_000.0), factors={"rope_freqs.weight": factors})


# Each takes the table, what stands without scaling, and the lengths of the context in training and now.


def default(table: Table, plain: Rope, original: int, n_ctx: int) -> Rope:  # noqa: ARG001 (one signature for all)
    return plain


def linear(table: Table, plain: Rope, original: int, n_ctx: int) -> Rope:  # noqa: ARG001
    """Positions are divided by a factor."""
    fields = {"type": Field.text("linear"), "factor": Field.float32(table.positive("factor"))}
    return Rope(plain.n_rot, plain.theta, fields)


def yarn(table: Table, plain: Rope, original: int, n_ctx: int) -> Rope:  # noqa: ARG001
    """Slow pairs are slowed down further, and scores grow with the logarithm of the factor (Peng et al., 2023).

    A reader of GGUF takes `1 + 0.1 ln factor` for how much queries and keys grow, times `attn_factor`; or with a
    `yarn_log_multiplier`, that of the logarithm in the numerator is 1, and this in the denominator.
    """
    factor = table.positive("factor")
    fields = {
        "type": Field.text("yarn"),
        "factor": Field.float32(factor),
        "original_context_length": Field.uint32(original),
    }
    for key in ("beta_fast", "beta_slow"):
        if table.values.get(key) is not None:
            fields[f"yarn_{key}"] = Field.float32(table.positive(key))
    usual = growth(factor, 1.0)
    multiplier, divisor = table.get("mscale", float, 0.0), table.get("mscale_all_dim", float, 0.0)
    if table.values.get("attention_factor") is not None:
        grows = table.positive("attention_factor")
        fields["yarn_attn_factor"] = Field.float32(grows)
    elif multiplier == 1.0 and divisor:
        fields["yarn_log_multiplier"] = Field.float32(divisor)
        grows = usual
    else:
        grows = growth(factor, multiplier) / growth(factor, divisor) if multiplier and divisor else usual
    if not math.isclose(grows, usual):
        fields["attn_factor"] = Field.float32(grows / usual)
    return Rope(plain.n_rot, plain.theta, fields)


def refuse_other_ramp(table: Table, truncates: bool) -> None:
    """GGUF has no key for whether YaRN's ramp lies between whole pairs: the architecture says it."""
    if table.get("truncate", bool, True) != truncates:
        raise table.error("truncate", f"{str(not truncates).lower()} is not supported", Unsupported)


def growth(factor: float, multiplier: float) -> float:
    return 0.1 * multiplier * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def llama3(table: Table, plain: Rope, original: int, n_ctx: int) -> Rope:  # noqa: ARG001
    """As yarn, with a formula of its own: GGUF keeps its result, a factor for each pair, as a tensor.

    Pairs that turn fast enough to go round `high` times in the original context stay as they are, those that go round
    less than `low` times are slowed down by `factor`, and what is between is mixed.
    """
    factor = table.positive("factor")
    low, high = table.positive("low_freq_factor"), table.positive("high_freq_factor")
    if low >= high:
        raise table.error("high_freq_factor", f"is {high:g}; it must be above low_freq_factor, {low:g}")
    rounds = original * plain_frequencies(plain.theta, plain.n_rot) / (2 * math.pi)
    fast = np.clip((rounds - low) / (high - low), 0.0, 1.0)
    factors = (1.0 / ((1.0 - fast) / factor + fast)).astype(np.float32)
    return Rope(plain.n_rot, plain.theta, factors={"rope_freqs.weight": factors})


def longrope(table: Table, plain: Rope, original: int, n_ctx: int) -> Rope:
    """A factor for each pair, and others once the text is longer than in training (Ding et al., 2024)."""
    factors = {
        f"rope_factors_{kind}.weight": pairs(table, f"{kind}_factor", plain.n_rot // 2) for kind in ("long", "short")
    }
    ratio = table.positive("factor", n_ctx / original)
    usual = math.sqrt(1 + math.log(ratio) / math.log(original)) if ratio > 1.0 else 1.0
    if "long_mscale" in table.values:  # Phi-3.5-MoE says both amplitudes outright
        usual = table.positive("long_mscale")
        if table.positive("short_mscale", usual) != usual:
            raise table.error("short_mscale", "another one than long_mscale is not supported", Unsupported)
    fields = {
        "type": Field.text("longrope"),
        "attn_factor": Field.float32(table.positive("attention_factor", usual)),
        "original_context_length": Field.uint32(original),
    }
    return Rope(plain.n_rot, plain.theta, fields, factors)


def pairs(table: Table, key: str, n: int) -> Factors:
    """A list of numbers above zero, one for each pair."""
    values: Sequence[Any] = table.get(key, list)
    numbers = [float(value) for value in values if type(value) in (int, float) and 1e-30 < value < 1e30]
    if len(numbers) < len(values) or len(numbers) != n:
        raise table.error(key, f"must be {n} numbers above 0")
    return np.array(numbers, np.float32)


def dynamic(table: Table, plain: Rope, original: int, n_ctx: int) -> Rope:  # noqa: ARG001
    """A base that grows once a text is longer than the context, which is further than one gets.

    With an alpha it is larger from the beginning: as for the longest text.
    """
    if table.values.get("alpha") is None or plain.n_rot == 2:
        return plain
    theta = plain.theta * table.positive("alpha") ** (plain.n_rot / (plain.n_rot - 2))
    fields = {
        "type": Field.text("none"),
        "factor": Field.float32(1.0),
        "original_context_length": Field.uint32(ALPHA_CONTEXT),
    }
    return Rope(plain.n_rot, theta, fields, n_ctx=ALPHA_CONTEXT)


SCALINGS: dict[str, Callable[[Table, Rope, int, int], Rope]] = {
    "default": default,
    "linear": linear,
    "yarn": yarn,
    "llama3": llama3,
    "longrope": longrope,
    "su": longrope,  # its first name
    "dynamic": dynamic,
}

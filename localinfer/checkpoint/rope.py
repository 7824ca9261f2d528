"""Rotary embeddings: how config.json spells them, what it slows them down by, and GGUF's keys for it.

Two spellings: rope_theta and rope_scaling, or since transformers 5 rope_parameters, which is a table for each kind of
layer where there are several.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from localinfer.checkpoint.folder import Table
from localinfer.errors import Unsupported
from localinfer.files.source import Field
from localinfer.plan.keys import MOST
from localinfer.plan.rope import plain_frequencies
from localinfer.text import printable

Factors: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Rope:
    """`fields` are the keys of its scaling behind `rope.scaling.`; `factors` slow each pair down: (head_dim / 2,)."""

    theta: float
    fields: Mapping[str, Field]
    factors: Factors | None = None


def read_ropes(config: Table, head_dim: int, n_ctx: int) -> tuple[Rope, Rope]:
    """Those of the layers that see everything, and of the layers with a window.

    Raises Unsupported naming a kind of scaling for which GGUF has no keys.
    """
    parameters = config.table("rope_parameters")
    if parameters.table("full_attention").values:
        everything, windows = parameters.table("full_attention"), parameters.table("sliding_attention")
    elif parameters.values:
        everything = windows = parameters
    else:
        scaling = config.table("rope_scaling")
        theta = {"rope_theta": config.values.get("rope_theta")}
        everything = Table(config.path, theta | dict(scaling.values), scaling.name if scaling.values else "")
        windows = Table(config.path, {"rope_theta": config.values.get("rope_local_base_freq")})
    return read_rope(everything, head_dim, n_ctx), read_rope(windows, head_dim, n_ctx)


def read_rope(table: Table, head_dim: int, n_ctx: int) -> Rope:
    theta = table.positive("rope_theta", 10_000.0)
    kind = table.get("rope_type", str, table.get("type", str, "default"))
    if kind not in SCALINGS:
        what = f"{printable(repr(kind), 40)} is not supported (only {', '.join(SCALINGS)})"
        raise table.error("rope_type", what, Unsupported)
    if table.get("partial_rotary_factor", float, 1.0) != 1.0:
        raise table.error("partial_rotary_factor", "is not supported", Unsupported)
    return SCALINGS[kind](table, theta, head_dim, n_ctx)


def plain(table: Table, theta: float, head_dim: int, n_ctx: int) -> Rope:  # noqa: ARG001 (one signature for all)
    return Rope(theta, {})


def linear(table: Table, theta: float, head_dim: int, n_ctx: int) -> Rope:  # noqa: ARG001
    """Positions are divided by a factor."""
    return Rope(theta, {"type": Field.text("linear"), "factor": Field.float32(table.positive("factor"))})


def yarn(table: Table, theta: float, head_dim: int, n_ctx: int) -> Rope:  # noqa: ARG001
    """Slow pairs are slowed down further (Peng et al., 2023)."""
    fields = {
        "type": Field.text("yarn"),
        "factor": Field.float32(table.positive("factor")),
        "original_context_length": Field.uint32(original_context_length(table, n_ctx)),
    }
    return Rope(theta, fields)


def llama3(table: Table, theta: float, head_dim: int, n_ctx: int) -> Rope:
    """As yarn, with a formula of its own: GGUF keeps its result, a factor for each pair, as a tensor.

    Pairs that turn fast enough to go round `high` times in the original context stay as they are, those that go round
    less than `low` times are slowed down by `factor`, and what is between is mixed.
    """
    factor, context = table.positive("factor"), original_context_length(table, n_ctx)
    low, high = table.positive("low_freq_factor"), table.positive("high_freq_factor")
    if low >= high:
        raise table.error("high_freq_factor", f"is {high:g}; it must be above low_freq_factor, {low:g}")
    rounds = context * plain_frequencies(theta, head_dim) / (2 * math.pi)
    fast = np.clip((rounds - low) / (high - low), 0.0, 1.0)
    return Rope(theta, {}, (1.0 / ((1.0 - fast) / factor + fast)).astype(np.float32))


def original_context_length(table: Table, n_ctx: int) -> int:
    return table.count("original_max_position_embeddings", MOST, n_ctx)


SCALINGS: dict[str, Callable[[Table, float, int, int], Rope]] = {
    "default": plain,
    "linear": linear,
    "yarn": yarn,
    "llama3": llama3,
}

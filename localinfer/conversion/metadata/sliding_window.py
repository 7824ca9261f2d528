"""Sliding-window attention: its layers according to config.json, and its GGUF keys."""

import warnings

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.hparams import HParams
from localinfer.errors import UnsupportedError
from localinfer.escaping import printable
from localinfer.gguf.source import Field
from localinfer.graph.properties import published_windows


def read_sliding_layers(architecture: Architecture, config: JsonObject, n_layer: int) -> tuple[bool, ...]:
    """Return whether each layer has sliding-window attention: by its type, or all but the last of each period."""
    if architecture.window_period is None:
        if not has_window(config):
            return (False,) * n_layer
        if not architecture.may_have_window:
            warn_ignored_window(config)
            return (False,) * n_layer
    if config.values.get("sliding_window") is None:
        return (False,) * n_layer
    kinds = config.get("layer_types", list, None)
    if kinds is None:
        if architecture.window_period is None:
            first = config.get("max_window_layers", int, 0)
            return tuple(block >= first for block in range(n_layer))
        period = read_period(config, architecture.window_period)
        return periodic_pattern(period, n_layer, first_is_full=architecture.first_is_full)
    if len(kinds) != n_layer or not {"full_attention", "sliding_attention"}.issuperset(map(str, kinds)):
        raise config.error("layer_types", f"must be full_attention or sliding_attention {n_layer} times")
    return tuple(kind == "sliding_attention" for kind in kinds)


def read_period(config: JsonObject, default: int) -> int:
    """Return the period, from a number or a string such as LLLG (local layers, then one global layer)."""
    pattern = config.values.get("sliding_window_pattern")
    if not isinstance(pattern, str):
        return config.positive_int("sliding_window_pattern", 1 << 10, default) if default else 0
    if pattern != "L" * (len(pattern) - 1) + "G":
        raise config.error(
            "sliding_window_pattern", f"{printable(repr(pattern), 40)} is not supported", UnsupportedError
        )
    return len(pattern)


def periodic_pattern(period: int, n_layer: int, *, first_is_full: bool = False) -> tuple[bool, ...]:
    """Return True for all layers but the last (or first) of every `period`; for all layers if the period is 0."""
    return tuple(not period or (block + (not first_is_full)) % period != 0 for block in range(n_layer))


def full_attention_value(config: JsonObject, key: str, common_key: str, maximum: int, default: int) -> int:
    """Return a value of the full-attention layers: from `key`, or from `common_key` in per_layer_config."""
    if key in config.values:
        return config.positive_int(key, maximum)
    kinds, layers = config.get("layer_types", list, []), config.child("per_layer_config")
    full = (str(number) for number, kind in enumerate(kinds) if kind == "full_attention")
    return next(
        (layers.child(each).positive_int(common_key, maximum, default) for each in full if each in layers.values),
        default,
    )


def has_window(config: JsonObject) -> bool:
    """Return whether a checkpoint has a sliding window that is shorter than its context."""
    window, used = config.get("sliding_window", int, None), config.get("use_sliding_window", bool, True)
    return window is not None and used and 0 < window < config.get("max_position_embeddings", int)


def warn_ignored_window(config: JsonObject) -> None:
    """Warn about a window that GGUF cannot express for this architecture; contexts within the window are unaffected."""
    problem = f"is ignored; beyond {config.get('sliding_window', int)} tokens attention covers the whole context"
    warnings.warn(str(config.error("sliding_window", problem)), stacklevel=2)


def fields(architecture: Architecture, hparams: HParams) -> dict[str, Field]:
    """Return the keys of sliding-window layers, without those that have their default value.

    A window of 0 tells a model without one from published models that have one, which their files do not always state.
    """
    if not hparams.sliding_window:
        states_none = architecture.may_have_window and architecture.name in published_windows.ARCHITECTURES
        return {"attention.sliding_window": Field.uint32(0)} if states_none else {}
    metadata = {"attention.sliding_window": Field.uint32(hparams.sliding_window)}
    if architecture.has_window_rope:
        metadata["rope.freq_base_swa"] = Field.float32(hparams.rope_swa.theta)
    if architecture.writes_window_flags:
        metadata["attention.sliding_window_pattern"] = Field.flags(hparams.is_sliding)
    elif hparams.is_sliding != periodic_pattern(architecture.window_period or 0, hparams.n_layer):
        metadata["attention.sliding_window_pattern"] = pattern_field(hparams.is_sliding)
    return metadata


def pattern_field(sliding: tuple[bool, ...]) -> Field:
    """Return the pattern as a period if it is periodic, which every reader understands, else as one flag per layer."""
    periods = (period for period in range(2, len(sliding) + 1) if sliding == periodic_pattern(period, len(sliding)))
    period = next(periods, 0)
    return Field.uint32(period) if period else Field.flags(sliding)

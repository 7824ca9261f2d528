"""Layers that see a window only: what config.json says of them, and the keys that say the same in a GGUF file."""

import warnings

from localinfer.checkpoint.architecture import Architecture
from localinfer.checkpoint.folder import Table
from localinfer.checkpoint.numbers import Numbers
from localinfer.errors import Unsupported
from localinfer.files.source import Field
from localinfer.text import printable


def read(architecture: Architecture, config: Table, n_layer: int) -> tuple[bool, ...]:
    """Whether each block sees a window only: by its type, or all but the last of a period."""
    if architecture.period is None:
        warn_of_window(config)
        return (False,) * n_layer
    if config.values.get("sliding_window") is None:
        return (False,) * n_layer
    kinds = config.get("layer_types", list, None)
    if kinds is None:
        period = read_period(config, architecture.period)
        return periodic(period, n_layer, first=architecture.first_of_period)
    if len(kinds) != n_layer or not {"full_attention", "sliding_attention"}.issuperset(map(str, kinds)):
        raise config.error("layer_types", f"must be full_attention or sliding_attention {n_layer} times")
    return tuple(kind == "sliding_attention" for kind in kinds)


def read_period(config: Table, usual: int) -> int:
    """A number, or a text such as LLLG: layers that see locally, and one that sees globally."""
    pattern = config.values.get("sliding_window_pattern")
    if not isinstance(pattern, str):
        return config.count("sliding_window_pattern", 1 << 10, usual) if usual else 0
    if pattern != "L" * (len(pattern) - 1) + "G":
        raise config.error("sliding_window_pattern", f"{printable(repr(pattern), 40)} is not supported", Unsupported)
    return len(pattern)


def periodic(period: int, n_layer: int, *, first: bool = False) -> tuple[bool, ...]:
    """All but the last of every `period`, or but the `first`; all where it is 0."""
    return tuple(not period or (block + (not first)) % period != 0 for block in range(n_layer))


def of_full_layers(config: Table, key: str, common_key: str, most: int, usual: int) -> int:
    """A number that layers which see everything have for themselves: by a `key` of its own, or by the common one in the
    table of layers that differ."""
    if key in config.values:
        return config.count(key, most)
    kinds, layers = config.get("layer_types", list, []), config.table("per_layer_config")
    full = (str(number) for number, kind in enumerate(kinds) if kind == "full_attention")
    return next((layers.table(each).count(common_key, most, usual) for each in full if each in layers.values), usual)


def warn_of_window(config: Table) -> None:
    """GGUF has no windows for some architectures; within the window there is no difference."""
    window, used = config.get("sliding_window", int, None), config.get("use_sliding_window", bool, True)
    if window is not None and used and window < config.get("max_position_embeddings", int):
        problem = f"is not carried over; beyond {window} tokens the whole context is seen"
        warnings.warn(str(config.error("sliding_window", problem)), stacklevel=2)


def fields(architecture: Architecture, numbers: Numbers) -> dict[str, Field]:
    """The keys of layers that see a window only; what is usual needs none."""
    if not numbers.window:
        return {}
    found = {"attention.sliding_window": Field.uint32(numbers.window)}
    if architecture.window_rope:
        found["rope.freq_base_swa"] = Field.float32(numbers.rope_swa.theta)
    if architecture.every_window:
        found["attention.sliding_window_pattern"] = Field.flags(numbers.sliding)
    elif numbers.sliding != periodic(architecture.period or 0, numbers.n_layer):
        found["attention.sliding_window_pattern"] = pattern_field(numbers.sliding)
    return found


def pattern_field(sliding: tuple[bool, ...]) -> Field:
    """A period, where there is one, as every reader understands it; else a flag for each block."""
    periods = (period for period in range(2, len(sliding) + 1) if sliding == periodic(period, len(sliding)))
    period = next(periods, 0)
    return Field.uint32(period) if period else Field.flags(sliding)

"""Metadata of a model file that options override when the model runs: any key, and the parameters of RoPE.

All of them become values of the open file's metadata, so that everything which reads it agrees. The file stays as it
is.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from localinfer.errors import UsageError
from localinfer.gguf.reader import GGUF, TYPE_NAMES, open_gguf
from localinfer.options import Options
from localinfer.options.metadata_values import Scalar, parse_override


def open_overridden(path: Path, options: Options) -> GGUF:
    """Open a model file with the metadata that the options override.

    Raises UsageError for an override that does not fit the file, and the errors of `open_gguf`.
    """
    f = open_gguf(path)
    f = override_metadata(f, {key: typed.value for key, typed in map(parse_override, options.override_kv)})
    return override_metadata(f, rope_overrides(f, options))


def override_metadata(f: GGUF, values: Mapping[str, Scalar]) -> GGUF:
    """Return the open file with other metadata. Raises UsageError for a value of another type than the file's."""
    for key, value in values.items():
        old, new = (TYPE_NAMES[type(each)] for each in (f.metadata.get(key, value), value))
        if old != new:
            raise f.error(key, f"is {old} in this file, which {new} cannot override", UsageError)
    if not values:
        return f
    return replace(f, metadata={**f.metadata, **values}, overrides={**f.overrides, **values})


def rope_overrides(f: GGUF, options: Options) -> dict[str, Scalar]:
    """Return the metadata that the RoPE and YaRN options set.

    As in llama.cpp, YaRN with another factor extends the training context to the original context times the factor, and
    `yarn_attn_factor` counts only without extrapolation. Raises UsageError for a factor without scaling.
    """
    prefix = f"{f.get('general.architecture', str)}."
    scaling = f"{prefix}rope.scaling."
    factor = options.rope_scale or (1 / options.rope_freq_scale if options.rope_freq_scale else 0.0)
    method = f.get(f"{scaling}type", str, "linear") if options.rope_scaling == "auto" else options.rope_scaling
    if factor and method == "none":
        raise UsageError("rope_scale: has no effect without scaling; set rope_scaling to linear or yarn")
    given: tuple[tuple[str, Scalar, bool], ...] = (
        (f"{scaling}type", method, options.rope_scaling != "auto"),
        (f"{scaling}factor", factor, factor > 0),
        (f"{prefix}rope.freq_base", options.rope_freq_base, options.rope_freq_base > 0),
        (f"{scaling}original_context_length", options.yarn_orig_ctx, options.yarn_orig_ctx > 0),
        (f"{scaling}yarn_ext_factor", options.yarn_ext_factor, options.yarn_ext_factor >= 0),
        (f"{scaling}yarn_beta_fast", options.yarn_beta_fast, options.yarn_beta_fast >= 0),
        (f"{scaling}yarn_beta_slow", options.yarn_beta_slow, options.yarn_beta_slow >= 0),
    )
    values = {key: value for key, value, is_given in given if is_given}
    extrapolation = values.get(f"{scaling}yarn_ext_factor", f.get(f"{scaling}yarn_ext_factor", float, None))
    if extrapolation is None:
        extrapolation = float(method == "yarn")
    if options.yarn_attn_factor >= 0 and not extrapolation:
        values[f"{scaling}attn_factor"] = f.get(f"{scaling}attn_factor", float, 1.0) * options.yarn_attn_factor
    if factor and method == "yarn":
        length = f"{prefix}context_length"
        trained = f.get(f"{scaling}original_context_length", int, f.get(length, int))
        original = options.yarn_orig_ctx or trained
        values |= {f"{scaling}original_context_length": original, length: int(original * factor)}
    return values

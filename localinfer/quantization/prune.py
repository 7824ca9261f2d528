"""Layer pruning: a model without some of its layers, as a `Source`, with layers renumbered and metadata adjusted.

The result is a smaller and worse model, to be trained further or to be measured.
"""

import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from localinfer.errors import UsageError
from localinfer.gguf.source import Field, Source

IN_LAYER = re.compile(r"blk\.(\d+)\.")
NOT_PER_LAYER = ("rope.dimension_sections",)  # arrays that may have one value per layer by coincidence
MTP_LAYERS_KEY = "nextn_predict_layers"
RECOGNIZED_BY_LAYERS = {("baichuan", 40), ("gemma2", 46), ("gemma3", 62)}  # models with attention of their own
Value = TypeVar("Value")


def parse_layers(text: str) -> tuple[int, ...]:
    """Parse layer numbers such as 0,3,7. Raises ValueError."""
    if not re.fullmatch(r"\d{1,6}(,\d{1,6})*", text, re.ASCII):
        raise ValueError(f"must be numbers of layers, such as 3,7, or auto:COUNT, not {text!r}")
    return tuple(map(int, text.split(",")))


def parse_count(text: str) -> int:
    """Parse how many layers are removed. Raises ValueError."""
    if not re.fullmatch(r"0*[1-9]\d{0,5}", text, re.ASCII):
        raise ValueError(f"must be a number of layers, such as auto:4, not auto:{text}")
    return int(text)


def prune_layers(source: Source, layers: Collection[int]) -> Source:
    """Return the source without these layers.

    Raises UsageError if a layer does not exist, if none would be left, and for a model that is recognized by its number
    of layers.
    """
    if not layers:
        return source
    architecture, count = _layer_count(source)
    if (architecture, count) in RECOGNIZED_BY_LAYERS and f"{architecture}.attention.scale" not in source.fields:
        raise UsageError(f"--prune-layers: {architecture} with other than {count} layers has another kind of attention")
    remaining = [number for number in range(count) if number not in layers]
    if not remaining or remaining[0] >= count - _n_mtp_layers(source.fields, architecture) or max(layers) >= count:
        raise UsageError(f"--prune-layers: {max(layers)}: the model has layers 0 to {count - 1}; one must remain")
    if _is_local_by_number(source.fields, architecture):
        warnings.warn(
            "sliding windows depend on layer numbers, so some of the remaining layers change theirs", stacklevel=2
        )
    tensors = {
        name: replace(tensor, name=name) for name, tensor in renumber_layers(source.tensors, frozenset(layers)).items()
    }
    return replace(source, fields=_fields_of(source.fields, architecture, count, remaining), tensors=tensors)


def renumber_layers(named: Mapping[str, Value], pruned: Collection[int]) -> dict[str, Value]:
    """Return the entries without those named after a pruned layer; the others get their new layer numbers."""
    renumbered: dict[str, Value] = {}
    for name, value in named.items():
        match = IN_LAYER.match(name)
        if match is None:
            renumbered[name] = value
        elif (number := int(match[1])) not in pruned:
            renumbered[f"blk.{number - sum(each < number for each in set(pruned))}.{name[match.end() :]}"] = value
    return renumbered


def _layer_count(source: Source) -> tuple[str, int]:
    """Return the architecture and the number of layers."""
    name = source.fields.get("general.architecture")
    architecture = name.value.decode("utf-8", "replace") if name and isinstance(name.value, bytes) else ""
    field = source.fields.get(f"{architecture}.block_count")
    if field is None or not isinstance(field.value, int) or field.value < 1:
        raise UsageError(f"--prune-layers: {source.path} does not state its number of layers")
    return architecture, field.value


def _n_mtp_layers(fields: Mapping[str, Field], architecture: str) -> int:
    """Return how many of the last layers are MTP layers."""
    field = fields.get(f"{architecture}.{MTP_LAYERS_KEY}")
    return field.value if field and isinstance(field.value, int) else 0


def _is_local_by_number(fields: Mapping[str, Field], architecture: str) -> bool:
    """Return whether layer numbers determine which layers have a sliding window."""
    pattern = fields.get(f"{architecture}.attention.sliding_window_pattern")
    return f"{architecture}.attention.sliding_window" in fields and (pattern is None or pattern.length is None)


def _fields_of(fields: Mapping[str, Field], architecture: str, count: int, layers: Sequence[int]) -> dict[str, Field]:
    """Return the metadata with the new layer count, and arrays of one value per layer reduced to `layers`."""
    pruned = dict(fields)
    for key, field in fields.items():
        name = key.removeprefix(f"{architecture}.")
        if name != key and name not in NOT_PER_LAYER and field.length == count:
            pruned[key] = field.take(layers)
    if n_mtp_layers := _n_mtp_layers(fields, architecture):
        pruned[f"{architecture}.{MTP_LAYERS_KEY}"] = Field.uint32(
            sum(number >= count - n_mtp_layers for number in layers)
        )
    return {**pruned, f"{architecture}.block_count": Field.uint32(len(layers))}

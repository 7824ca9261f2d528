"""A model without some of its layers, as a `Source`: the others move up, and the metadata counts what is left.

What remains is a smaller and worse model, to be trained on or to be measured. Knows nothing of types.
"""

import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from localinfer.errors import UsageError
from localinfer.files.source import Field, Source

IN_LAYER = re.compile(r"blk\.(\d+)\.")
OF_NO_LAYER = ("rope.dimension_sections",)  # arrays that may be as long as the model has layers, and mean others
AHEAD = "nextn_predict_layers"
Value = TypeVar("Value")


def parsed_layers(text: str) -> tuple[int, ...]:
    """0,3,7. Raises ValueError."""
    if not re.fullmatch(r"\d{1,6}(,\d{1,6})*", text, re.ASCII):
        raise ValueError(f"must be numbers of layers, such as 3,7, not {text!r}")
    return tuple(map(int, text.split(",")))


def without_layers(source: Source, layers: Collection[int]) -> Source:
    """The source less these layers. Raises UsageError for layers that it does not have, and if none would be left."""
    if not layers:
        return source
    architecture, count = _counted(source)
    kept = [number for number in range(count) if number not in layers]
    if not kept or kept[0] >= count - _ahead(source.fields, architecture) or max(layers) >= count:
        raise UsageError(f"--prune-layers: {max(layers)}: the model has layers 0 to {count - 1}, and one must be left")
    if _is_local_by_number(source.fields, architecture):
        warnings.warn("which layers look back how far goes by their numbers, and so it is not as before", stacklevel=2)
    tensors = {
        name: replace(tensor, name=name) for name, tensor in renumbered(source.tensors, frozenset(layers)).items()
    }
    return replace(source, fields=_fields_of(source.fields, architecture, count, kept), tensors=tensors)


def renumbered(named: Mapping[str, Value], pruned: Collection[int]) -> dict[str, Value]:
    """Without what is named after a pruned layer; what is named after another has that one's new number."""
    found: dict[str, Value] = {}
    for name, value in named.items():
        match = IN_LAYER.match(name)
        if match is None:
            found[name] = value
        elif (number := int(match[1])) not in pruned:
            found[f"blk.{number - sum(each < number for each in set(pruned))}.{name[match.end() :]}"] = value
    return found


def _counted(source: Source) -> tuple[str, int]:
    """The architecture, and how many layers there are."""
    name = source.fields.get("general.architecture")
    architecture = name.value.decode("utf-8", "replace") if name and isinstance(name.value, bytes) else ""
    field = source.fields.get(f"{architecture}.block_count")
    if field is None or not isinstance(field.value, int) or field.value < 1:
        raise UsageError(f"--prune-layers: {source.path} does not say how many layers it has")
    return architecture, field.value


def _ahead(fields: Mapping[str, Field], architecture: str) -> int:
    """How many of the layers, the last ones, predict further tokens."""
    field = fields.get(f"{architecture}.{AHEAD}")
    return field.value if field and isinstance(field.value, int) else 0


def _is_local_by_number(fields: Mapping[str, Field], architecture: str) -> bool:
    """Whether some layers have a sliding window, and which ones is not said one by one."""
    pattern = fields.get(f"{architecture}.attention.sliding_window_pattern")
    return f"{architecture}.attention.sliding_window" in fields and (pattern is None or pattern.length is None)


def _fields_of(fields: Mapping[str, Field], architecture: str, count: int, kept: Sequence[int]) -> dict[str, Field]:
    """The metadata with the number of layers that are kept, and in arrays of a value a layer with theirs."""
    found = dict(fields)
    for key, field in fields.items():
        own = key.removeprefix(f"{architecture}.")
        if own != key and own not in OF_NO_LAYER and field.length == count:
            found[key] = field.only(kept)
    if ahead := _ahead(fields, architecture):
        found[f"{architecture}.{AHEAD}"] = Field.uint32(sum(number >= count - ahead for number in kept))
    return {**found, f"{architecture}.block_count": Field.uint32(len(kept))}

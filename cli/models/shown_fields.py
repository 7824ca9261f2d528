"""Metadata values as one short line."""

from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from localinfer.escaping import printable
from localinfer.gguf.reader import StringArray, Value

if TYPE_CHECKING:
    from localinfer.gguf.source import Field

SHOWN_VALUES = 5  # values of an array
SHOWN_CHARACTERS = 100  # characters of a value


def format_value(value: Value) -> str:
    """Format a metadata value as one short line."""
    if isinstance(value, StringArray):
        first = ", ".join(
            f'"{printable(text, SHOWN_CHARACTERS // SHOWN_VALUES)}"' for text in islice(value, SHOWN_VALUES)
        )
        return f"{len(value):,} string{'s' * (len(value) != 1)}: {first}{', ...' * (len(value) > SHOWN_VALUES)}"
    if isinstance(value, np.ndarray):
        first = ", ".join(f"{number:.7g}" for number in value[:SHOWN_VALUES].tolist())
        return f"{len(value):,} {value.dtype.name}: {first}{', ...' * (len(value) > SHOWN_VALUES)}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return printable(value, SHOWN_CHARACTERS)
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def shown_field(field: "Field | None") -> str:
    """Format a metadata value in GGUF encoding as one short line; "-" if there is none."""
    if field is None:
        return "-"
    value = field.value
    if value is None:  # an array of strings or bools
        return f"{int.from_bytes(field.data[4:12], 'little'):,} values"
    if isinstance(value, bytes):
        return format_value(value.decode("utf-8", "backslashreplace"))
    return format_value(value)

"""The syntax of metadata values on the command line: TYPE:VALUE, and KEY=TYPE:VALUE for a key that is overridden."""

import struct
from typing import NamedTuple

from localinfer.options.flag import format_value

Scalar = bool | int | float | str
INTEGERS = {f"{sign}{bits}": (sign, bits) for sign in "ui" for bits in (8, 16, 32, 64)}
FLOATS = {"f32": "<f", "f64": "<d"}
TYPES = ("str", "bool", "int", "float", *INTEGERS, *FLOATS)  # `int` is u32 or i32, `float` f32
BOOLS = {"true": True, "false": False, "1": True, "0": False}
OVERRIDE_SEPARATOR = rf",(?=[^=,]+=(?:{'|'.join(TYPES)}):)"  # other commas are part of a text


class TypedValue(NamedTuple):
    """A metadata value. `type` is "str", "bool" or a numeric type of GGUF such as "u32", whose range has the value."""

    type: str
    value: Scalar


def parse_typed(text: str) -> TypedValue:
    """Parse TYPE:VALUE. Raises ValueError."""
    kind, colon, value = text.partition(":")
    if not colon or kind not in TYPES:
        raise ValueError(f"must be TYPE:VALUE with TYPE one of {', '.join(TYPES)}, not {format_value(text)}")
    return parse_as(kind, value)


def parse_as(kind: str, text: str) -> TypedValue:
    """Parse a value of one of `TYPES`. Raises ValueError."""
    name = {"int": "i32" if text.startswith("-") else "u32", "float": "f32"}.get(kind, kind)
    try:
        return TypedValue(name, _scalar(name, text))
    except (ValueError, OverflowError, KeyError):
        raise ValueError(f"{format_value(text)} is not a valid {kind}") from None


def parse_override(text: str) -> tuple[str, TypedValue]:
    """Parse KEY=TYPE:VALUE. Raises ValueError."""
    key, equals, typed = text.partition("=")
    if not key or not key.isascii() or not equals:
        raise ValueError(f"must be KEY=TYPE:VALUE with TYPE one of {', '.join(TYPES)}, not {format_value(text)}")
    if decides_positions(key):
        raise ValueError(f"{key} determines the positions of the tensors and cannot be changed")
    return key, parse_typed(typed)


def decides_positions(key: str) -> bool:
    """Return whether a key of a model file decides where its tensors are, so that it cannot be changed alone."""
    return key == "general.alignment" or key.startswith("split.")


def _scalar(name: str, text: str) -> Scalar:
    if name == "str":
        text.encode()  # raises UnicodeEncodeError for what GGUF cannot hold
        return text
    if name == "bool":
        return BOOLS[text.lower()]
    if name in FLOATS:
        return float(struct.unpack(FLOATS[name], struct.pack(FLOATS[name], float(text)))[0])
    sign, bits = INTEGERS[name]
    number = int(text)
    if not (0 <= number < 1 << bits if sign == "u" else -(1 << bits - 1) <= number < 1 << bits - 1):
        raise ValueError(text)
    return number

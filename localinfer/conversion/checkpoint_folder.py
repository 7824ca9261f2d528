"""The files of a checkpoint directory: found by name, read with size limits, with typed access to their JSON.

`files` records every file that was read. This module depends neither on models nor on tokenizers.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar, overload

from localinfer.errors import LocalInferError, ModelNotFoundError
from localinfer.escaping import printable
from localinfer.gguf import file_signatures

CONFIG = "config.json"
FLOAT_LIMIT = 10**300
INFINITY_CONSTANTS = {
    "Infinity": math.inf,
    "-Infinity": -math.inf,
}  # not JSON, but used in config.json for "no limit"
FLOAT_TAG = "__float__"  # newer files write {"__float__": "Infinity"}
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
MAX_FILE_BYTES = 128 << 20  # bytes; the tokenizer.json of 262,144 tokens has 33 MB
TYPE_NAMES: dict[type, str] = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "a string",
    list: "a list",
    dict: "an object",
}

T = TypeVar("T", int, float, bool, str, list[Any], dict[str, Any])
D = TypeVar("D")
REQUIRED: Any = object()  # stands for "no default"


@dataclass(frozen=True, eq=False)
class JsonObject:
    """A JSON object in a file; null counts as missing. `prefix` precedes keys in messages: "rope_scaling.".

    `aliases` maps canonical keys to the keys that the file uses.
    """

    path: Path
    values: Mapping[str, Any]
    prefix: str = ""
    aliases: Mapping[str, str] = field(default_factory=dict)

    def error(self, key: str, problem: str, kind: type[LocalInferError] = LocalInferError) -> LocalInferError:
        """Return a one-line error about a key."""
        where = printable(f"{self.prefix}{self.aliases.get(key, key)}", 120)
        return kind(f"{printable(str(self.path))}: {where}: {problem}")

    @overload
    def get(self, key: str, kind: type[T]) -> T: ...
    @overload
    def get(self, key: str, kind: type[T], default: D) -> T | D: ...
    def get(self, key: str, kind: type, default: Any = REQUIRED) -> Any:
        """Return the value of `key`, which must have type `kind`; an int is accepted for a float.

        Raises LocalInferError if the key is missing and there is no default.
        """
        value = self.values.get(key)
        if value is None:
            if default is REQUIRED:
                raise self.error(key, f"is missing; it must be {TYPE_NAMES[kind]}")
            return default
        if value in INFINITY_CONSTANTS.values():
            raise self.error(key, f"is {value}; it must be finite")
        if kind is float and type(value) is int:
            value = float(value) if abs(value) < FLOAT_LIMIT else math.inf
        if type(value) is not kind:
            raise self.error(key, f"expected {TYPE_NAMES[kind]}, got {printable(repr(value), 40)}")
        return value

    def positive_int(self, key: str, maximum: int, default: int | None = None) -> int:
        """Return an integer from 1 to `maximum`."""
        value = self.get(key, int) if default is None else self.get(key, int, default)
        if not 1 <= value <= maximum:
            raise self.error(key, f"is {value}; it must be 1 to {maximum}")
        return value

    def positive_float(self, key: str, default: float | None = None, *, maximum: float = 1e30) -> float:
        """Return a positive number that float32 can represent."""
        value = self.get(key, float) if default is None else self.get(key, float, default)
        if not 1e-30 < value < maximum:
            raise self.error(key, f"is {value:g}; it must be above 0 and below {maximum:g}")
        return value

    def child(self, key: str) -> "JsonObject":
        """Return the object at `key`, empty if there is none."""
        return JsonObject(self.path, self.get(key, dict, {}), f"{self.prefix}{key}.")

    def children(self, key: str) -> "list[JsonObject]":
        """Return the objects of the list at `key`, which may be missing."""
        objects = self.get(key, list, [])
        odd = [value for value in objects if not isinstance(value, dict)]
        if odd:
            raise self.error(key, f"expected objects, got {printable(repr(odd[0]), 40)}")
        return [JsonObject(self.path, value, f"{self.prefix}{key}[{index}].") for index, value in enumerate(objects)]


class CheckpointFolder:
    """A checkpoint directory and the files read from it. Raises ModelNotFoundError if it is not a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read: list[Path] = []
        self._tables: dict[str, JsonObject] = {}
        if not path.is_dir():
            problem = "is a file, not a checkpoint directory" if path.exists() else "no such directory"
            raise ModelNotFoundError(f"{printable(str(path))}: {problem}")

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that were read, in order."""
        return tuple(dict.fromkeys(self._read))

    def error(self, problem: str, kind: type[LocalInferError] = LocalInferError) -> LocalInferError:
        """Return a one-line error about the directory."""
        return kind(f"{printable(str(self.path))}: {problem}")

    def file_names(self) -> list[str]:
        """Return the names in the directory, sorted."""
        return sorted(path.name for path in self.path.iterdir())

    def has(self, name: str) -> bool:
        """Return whether there is a regular file with this name."""
        try:
            return (self.path / name).is_file()
        except OSError:  # the name is too long
            return False

    def find(self, name: str) -> Path | None:
        """Return the path of a regular file (or a link to one), or None."""
        path = self.path / name
        if not self.has(name):
            return None
        self._read.append(path)
        return path

    def read_bytes(self, name: str) -> bytes | None:
        """Return a whole file, or None if there is none. Raises LocalInferError if it is too large."""
        path = self.find(name)
        if path is None:
            return None
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise LocalInferError(f"{printable(str(path))}: larger than {MAX_FILE_BYTES:,} bytes")
        return content

    def read_text(self, name: str) -> str | None:
        """Return a whole UTF-8 file, or None if there is none."""
        content = self.read_bytes(name)
        try:
            return None if content is None else content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise LocalInferError(f"{printable(str(self.path / name))}: not UTF-8 at byte {error.start}") from None

    def json(self, name: str) -> JsonObject:
        """Return the object in a required JSON file."""
        if not self.has(name):
            raise self.error(f"there is no {name}: not a checkpoint directory")
        return self.optional_json(name)

    def optional_json(self, name: str) -> JsonObject:
        """Return the object in a JSON file, empty if there is none. Files are read once."""
        if name not in self._tables:
            self._tables[name] = self._parsed(name)
        return self._tables[name]

    def json_list(self, name: str) -> list[JsonObject]:
        """Return the objects of the list in a JSON file, empty if there is no such file."""
        text, path = self.read_text(name), self.path / name
        return [] if text is None else JsonObject(path, {"": self._read_json(text, path)}).children("")

    def _parsed(self, name: str) -> JsonObject:
        text, path = self.read_text(name), self.path / name
        if text is None:
            return JsonObject(path, {})
        values = self._read_json(text, path)
        if not isinstance(values, dict):
            raise LocalInferError(f"{printable(str(path))}: not a JSON object")
        return JsonObject(path, values)

    def _read_json(self, text: str, path: Path) -> Any:
        try:
            constant, limit = (parse_infinity, unwrap_tagged_float) if path.name == CONFIG else (reject_constant, None)
            values = json.loads(text, parse_constant=constant, parse_float=parse_finite_float, object_hook=limit)
            reject_lone_surrogates(text, values)
        except (ValueError, RecursionError) as error:
            what = "nested too deeply" if isinstance(error, RecursionError) else printable(str(error), 120)
            kind = file_signatures.describe_file(text[: file_signatures.HEAD_BYTES].encode())
            what = f"this is {kind}" if kind and "JSON" not in kind else what
            raise LocalInferError(f"{printable(str(path))}: not JSON: {what}") from None
        return values


def reject_constant(text: str) -> NoReturn:
    """Raise ValueError for NaN and Infinity, which are not JSON."""
    raise ValueError(f"{text} is not a number")


def parse_infinity(text: str) -> float:
    """Return Infinity; raise ValueError for NaN."""
    return INFINITY_CONSTANTS[text] if text in INFINITY_CONSTANTS else reject_constant(text)


def unwrap_tagged_float(table: dict[str, Any]) -> Any:
    """Return the number in {"__float__": ...}, or the unchanged object."""
    if table.keys() != {FLOAT_TAG}:
        return table
    number = table[FLOAT_TAG]
    return INFINITY_CONSTANTS.get(number, number) if isinstance(number, str) else number


def reject_lone_surrogates(text: str, values: object) -> None:
    """Raise ValueError for escapes of lone surrogates, which UTF-8 and GGUF cannot represent."""
    if not SURROGATE.search(text):
        return
    try:
        json.dumps(values, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"\\u{ord(error.object[error.start]):04x} is a lone surrogate") from None


def parse_finite_float(text: str) -> float:
    """Parse a number of a JSON file. Raises ValueError if it is too large for a float."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large")
    return value

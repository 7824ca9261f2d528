"""The files of a checkpoint directory: found by name, read with limits, their JSON asked for with types.

Knows neither models nor tokenizers. Every file that is read is remembered in `files`.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar, overload

from localinfer.errors import LocalInferError, ModelNotFound
from localinfer.files import not_gguf
from localinfer.text import printable

CONFIG = "config.json"
BEYOND_FLOATS = 10**300
INFINITE = {"Infinity": math.inf, "-Infinity": -math.inf}  # not JSON, but in configurations; where others see no limit
TAG = "__float__"  # as newer ones write it: {"__float__": "Infinity"}
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
LIMIT = 128 << 20  # bytes; the tokenizer.json of 262,144 tokens has 33 MB
KINDS: dict[type, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    list: "a list",
    dict: "an object",
}

T = TypeVar("T", int, float, bool, str, list[Any], dict[str, Any])
D = TypeVar("D")
REQUIRED: Any = object()  # stands for "no default"


@dataclass(frozen=True, eq=False)
class Table:
    """A JSON object in a file; null is as good as nothing. `name` begins the keys in messages: "rope_scaling.".

    `spellings` are the file's own words for some of the keys.
    """

    path: Path
    values: Mapping[str, Any]
    name: str = ""
    spellings: Mapping[str, str] = field(default_factory=dict)

    def error(self, key: str, problem: str, kind: type[LocalInferError] = LocalInferError) -> LocalInferError:
        """The one line that says what is wrong with a key."""
        where = printable(f"{self.name}{self.spellings.get(key, key)}", 120)
        return kind(f"{printable(str(self.path))}: {where}: {problem}")

    @overload
    def get(self, key: str, kind: type[T]) -> T: ...
    @overload
    def get(self, key: str, kind: type[T], default: D) -> T | D: ...
    def get(self, key: str, kind: type, default: Any = REQUIRED) -> Any:
        """The value of `key`, which must be a `kind`; a whole number will do for a float.

        Raises if there is neither such a key nor a default.
        """
        value = self.values.get(key)
        if value is None:
            if default is REQUIRED:
                raise self.error(key, f"is missing; it must be {KINDS[kind]}")
            return default
        if value in INFINITE.values():
            raise self.error(key, f"is {value}; it must be finite")
        if kind is float and type(value) is int:
            value = float(value) if abs(value) < BEYOND_FLOATS else math.inf
        if type(value) is not kind:
            raise self.error(key, f"expected {KINDS[kind]}, got {printable(repr(value), 40)}")
        return value

    def count(self, key: str, most: int, default: int | None = None) -> int:
        """A whole number, 1 to `most`."""
        value = self.get(key, int) if default is None else self.get(key, int, default)
        if not 1 <= value <= most:
            raise self.error(key, f"is {value}; it must be 1 to {most}")
        return value

    def positive(self, key: str, default: float | None = None, *, most: float = 1e30) -> float:
        """A number above zero that float32 can hold."""
        value = self.get(key, float) if default is None else self.get(key, float, default)
        if not 1e-30 < value < most:
            raise self.error(key, f"is {value:g}; it must be above 0 and below {most:g}")
        return value

    def table(self, key: str) -> "Table":
        """The object at `key`, empty if there is none."""
        return Table(self.path, self.get(key, dict, {}), f"{self.name}{key}.")

    def tables(self, key: str) -> "list[Table]":
        """The objects of the list at `key`, which may be missing."""
        found = self.get(key, list, [])
        odd = [value for value in found if not isinstance(value, dict)]
        if odd:
            raise self.error(key, f"expected objects, got {printable(repr(odd[0]), 40)}")
        return [Table(self.path, value, f"{self.name}{key}[{place}].") for place, value in enumerate(found)]


class Folder:
    """A directory and what was read of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read: list[Path] = []
        self._tables: dict[str, Table] = {}
        if not path.is_dir():
            problem = "is a file, not a checkpoint directory" if path.exists() else "no such directory"
            raise ModelNotFound(f"{printable(str(path))}: {problem}")

    @property
    def files(self) -> tuple[Path, ...]:
        """What was read, in that order."""
        return tuple(dict.fromkeys(self._read))

    def error(self, problem: str, kind: type[LocalInferError] = LocalInferError) -> LocalInferError:
        """The one line about the directory."""
        return kind(f"{printable(str(self.path))}: {problem}")

    def names(self) -> list[str]:
        """What is in it, sorted."""
        return sorted(path.name for path in self.path.iterdir())

    def has(self, name: str) -> bool:
        return (self.path / name).is_file()

    def find(self, name: str) -> Path | None:
        """The regular file of that name, or a link to one; None where there is none."""
        path = self.path / name
        if not self.has(name):
            return None
        self._read.append(path)
        return path

    def bytes(self, name: str) -> bytes | None:
        """A whole file; None where there is none."""
        path = self.find(name)
        if path is None:
            return None
        with path.open("rb") as file:
            content = file.read(LIMIT + 1)
        if len(content) > LIMIT:
            raise LocalInferError(f"{printable(str(path))}: larger than {LIMIT:,} bytes")
        return content

    def text(self, name: str) -> str | None:
        """A whole file; None where there is none."""
        content = self.bytes(name)
        try:
            return None if content is None else content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise LocalInferError(f"{printable(str(self.path / name))}: not UTF-8 at byte {error.start}") from None

    def table(self, name: str) -> Table:
        """The object in a JSON file, which must be there."""
        if not self.has(name):
            raise self.error(f"there is no {name}: not the directory of a checkpoint")
        return self.optional(name)

    def optional(self, name: str) -> Table:
        """The object in a JSON file, empty where there is none. A file is read once."""
        if name not in self._tables:
            self._tables[name] = self._parsed(name)
        return self._tables[name]

    def tables(self, name: str) -> list[Table]:
        """The objects of the list in a JSON file; none where there is no such file."""
        text, path = self.text(name), self.path / name
        return [] if text is None else Table(path, {"": self._read_json(text, path)}).tables("")

    def _parsed(self, name: str) -> Table:
        text, path = self.text(name), self.path / name
        if text is None:
            return Table(path, {})
        values = self._read_json(text, path)
        if not isinstance(values, dict):
            raise LocalInferError(f"{printable(str(path))}: not a JSON object")
        return Table(path, values)

    def _read_json(self, text: str, path: Path) -> Any:
        try:
            constant, limit = (infinite, untagged) if path.name == CONFIG else (refuse_constant, None)
            values = json.loads(text, parse_constant=constant, parse_float=finite, object_hook=limit)
            refuse_surrogates(text, values)
        except (ValueError, RecursionError) as error:
            what = "nested too deeply" if isinstance(error, RecursionError) else printable(str(error), 120)
            kind = not_gguf.describe(text[: not_gguf.LONGEST].encode())
            what = f"this is {kind}" if kind and "JSON" not in kind else what
            raise LocalInferError(f"{printable(str(path))}: not JSON: {what}") from None
        return values


def refuse_constant(text: str) -> NoReturn:
    """For NaN and Infinity, which are not JSON."""
    raise ValueError(f"{text} is not a number")


def infinite(text: str) -> float:
    """For Infinity; not for NaN."""
    return INFINITE[text] if text in INFINITE else refuse_constant(text)


def untagged(table: dict[str, Any]) -> Any:
    """The number that a tagged one stands for."""
    if table.keys() != {TAG}:
        return table
    found = table[TAG]
    return INFINITE.get(found, found) if isinstance(found, str) else found


def refuse_surrogates(text: str, values: object) -> None:
    """Raise ValueError where an escape stands for half a character: GGUF, and UTF-8 altogether, cannot say that."""
    if not SURROGATE.search(text):
        return
    try:
        json.dumps(values, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"\\u{ord(error.object[error.start]):04x} is half a character") from None


def finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large")
    return value

"""Files of tasks: JSON Lines and CSV, also compressed with gzip."""

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from localinfer.errors import LocalInferError
from localinfer.escaping import printable

GZIP_MAGIC, PARQUET_MAGIC = b"\x1f\x8b", b"PAR1"


class Record:
    """A JSON object of a file. Its fields are checked when they are read; errors name the file and the line."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values, self.where = values, where

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def text(self, *names: str) -> str:
        """Return the text of the first of these fields that exists."""
        value = self._value(*names)
        if not isinstance(value, str):
            raise self.error(names[0], "must be a text")
        return value

    def texts(self, name: str) -> list[str]:
        """Return a field that is a list of one or more texts."""
        value = self._value(name)
        if not isinstance(value, list) or not value or not all(isinstance(each, str) for each in value):
            raise self.error(name, "must be a list of texts")
        return value

    def records(self, name: str) -> "list[Record]":
        """Return a field that is a list of objects."""
        value = self._value(name)
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise self.error(name, "must be a list of objects")
        return [Record(each, self.where) for each in value]

    def record(self, name: str) -> "Record":
        """Return a field that is an object."""
        value = self._value(name)
        if not isinstance(value, dict):
            raise self.error(name, "must be an object")
        return Record(value, self.where)

    def number(self, name: str, count: int, first: int = 0) -> int:
        """Return a field that numbers one of `count` things from `first` on, as a number from 0 on."""
        value = self._value(name)
        try:
            number = int(value) - first
        except (TypeError, ValueError):
            number = -1
        if not 0 <= number < count:
            raise self.error(name, f"must be a number from {first} to {first + count - 1}")
        return number

    def error(self, name: str, what: str) -> LocalInferError:
        return LocalInferError(f"{self.where}: {name}: {what}")

    def _value(self, *names: str) -> Any:
        for name in names:
            if name in self.values:
                return self.values[name]
        raise self.error(names[0], "is missing")


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, decompressed. Raises LocalInferError."""
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content.startswith(GZIP_MAGIC) else content
    except (OSError, EOFError, zlib.error) as error:
        raise LocalInferError(f"{shown(path)}: {getattr(error, 'strerror', None) or error}") from None


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file. Raises LocalInferError."""
    content = read_bytes(path)
    if not content.strip():
        raise LocalInferError(f"{shown(path)}: has no items")
    if content.startswith(PARQUET_MAGIC):
        raise LocalInferError(f"{shown(path)}: is a Parquet file, of which the rows are needed as JSON Lines")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise LocalInferError(f"{shown(path)}: byte {error.start}: is no UTF-8 text") from None


def json_lines(path: Path) -> Iterator[Record]:
    """Yield the objects of a JSON Lines file. Raises LocalInferError."""
    for number, line in enumerate(read_text(path).split("\n"), 1):
        where = f"{shown(path)}: line {number}"
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise LocalInferError(f"{where}: is no JSON object")
        yield Record(value, where)


def csv_rows(path: Path, n_columns: int) -> Iterator[tuple[str, list[str]]]:
    """Yield the place and the cells of each row of a CSV file. Raises LocalInferError for another number of cells."""
    reader = csv.reader(io.StringIO(read_text(path), newline=""))
    try:
        for row in reader:
            where = f"{shown(path)}: line {reader.line_num}"
            if not row:
                continue
            if len(row) != n_columns:
                raise LocalInferError(f"{where}: has {len(row)} columns, not {n_columns}")
            yield where, row
    except csv.Error as error:
        raise LocalInferError(f"{shown(path)}: line {reader.line_num}: {error}") from None


def is_json_lines(path: Path) -> bool:
    """Return whether a file begins as JSON Lines do."""
    return read_bytes(path).lstrip()[:1] == b"{"


def shown(path: Path) -> str:
    """Return a path as messages show it."""
    return printable(str(path))

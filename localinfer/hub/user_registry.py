"""Writing and removing entries of the user's models.toml. Its comments and other entries stay as they are."""

import json
import re
import threading
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from localinfer import paths
from localinfer.errors import UsageError
from localinfer.escaping import printable
from localinfer.gguf.atomic_file import atomic_files
from localinfer.gguf.reader import open_gguf
from localinfer.hub import resolve
from localinfer.hub.model_registry import (
    MODEL_NAME,
    SOURCE_NAME,
    model_registry,
    parse_entry,
    read_toml,
    shipped_registry_path,
    user_registry_path,
)
from localinfer.hub.registry_store import names_of_files
from localinfer.hub.resolve import NotDownloadedError, default_options, find
from localinfer.options import Value

HEADER = re.compile(r"\s*\[")  # the line before a table of a TOML file

_lock = threading.Lock()  # held from reading the file to its replacement


def add_entry(name: str, source: str, options: Mapping[str, Value | list[str]]) -> None:
    """Append an entry for a model that is on this machine, or for a name of another store.

    Raises UsageError for a name that is invalid or taken, and ModelNotFoundError.
    """
    with _lock:
        require_new_name(name)
        path = user_registry_path()
        entry = entry_text(name, source, options)
        parse_entry(tomllib.loads(entry)["models"][name], name, path.parent)  # checks the values of the options
        paths.private_directory(path.parent)
        before = path.read_text("utf-8-sig").rstrip("\n") if path.exists() else ""
        write(path, f"{before}\n\n{entry}".lstrip("\n"))


class EntryRemoval(NamedTuple):
    """The removal of a name that `cp` or `create` added, and of the file that `create` made for it."""

    name: str
    files: list[Path]
    size: int

    def delete(self) -> None:
        """Remove the entry and then the files. Raises UsageError if the entry cannot be cut out of the file."""
        remove_entry(self.name)
        for file in self.files:
            file.unlink(missing_ok=True)


def plan_removal(name: str) -> "EntryRemoval | resolve.Removal":
    """Return what `localinfer rm` removes: the user's own name for a model, or else the files of a model.

    A file that the name does not own stays: it is the user's, or has other names. Raises what `resolve.plan_removal`
    raises.
    """
    if not is_own_name(name):
        return resolve.plan_removal(name)
    path = model_registry().entries[name].path
    is_own_file = path is not None and path.parent == paths.models_dir() and names_of_files([path]) == [name]
    files = [path] if path and is_own_file and path.is_file() else []
    return EntryRemoval(name, files, sum(file.stat().st_size for file in files))


def is_own_name(name: str) -> bool:
    """Return whether this is a name of the user's models.toml, and not one that localinfer knows anyway."""
    entry, shipped = model_registry().entries.get(name), read_toml(shipped_registry_path()).get("models")
    is_known_anyway = isinstance(shipped, Mapping) and name in shipped
    return bool(entry and (entry.path or entry.source)) and not is_known_anyway


def remove_entry(name: str) -> None:
    """Cut the entry of a model out of the user's models.toml. Raises UsageError if that is not possible."""
    with _lock:
        path = user_registry_path()
        before = path.read_text("utf-8-sig")
        expected = tomllib.loads(before)
        del expected["models"][name]
        after = without_table(before, ["models", name])
        if expected.get("default") == name:
            raise UsageError(f"{name}: is the default model; choose another one in {path} first")
        if without_empty(tomllib.loads(after)) != without_empty(expected):
            raise UsageError(f"{name}: cannot be cut out of {path}; remove it there")
        write(path, after)


def without_table(text: str, key: list[str]) -> str:
    """Return a TOML text without a table and the tables in it. Comments before the next table stay."""
    kept: list[str] = []
    comments: list[str] = []  # of the removed table so far; they may belong to the next one
    is_removed = False
    for line in text.splitlines(keepends=True):
        if HEADER.match(line):
            is_removed = key_of(line)[: len(key)] == key
            kept += [] if is_removed else comments
            comments = []
        if not is_removed:
            kept.append(line)
        elif line.lstrip().startswith("#") or not line.strip():
            comments.append(line)
        else:
            comments = []
    return "".join(kept + comments).strip("\n") + "\n"


def key_of(header: str) -> list[str]:
    """Return the parts of the key in the header of a table; none if this is no header."""
    try:
        table = tomllib.loads(header)
    except tomllib.TOMLDecodeError:  # a line of an array
        return []
    parts = []
    while isinstance(table, dict) and len(table) == 1:
        [(part, table)] = table.items()
        parts.append(part)
    return parts


def without_empty(table: Mapping[str, object]) -> dict[str, object]:
    """Return a table without the models if there are none."""
    return {name: value for name, value in table.items() if value or name != "models"}


def require_new_name(name: str) -> None:
    """Raise UsageError for a name that is invalid or taken."""
    if not MODEL_NAME.fullmatch(name):
        raise UsageError(f"{printable(name, 80)}: invalid name: only a-z 0-9 . _ -, at most 64 characters")
    if name in model_registry().entries:
        raise UsageError(f"{name}: is in use; choose another name, or remove the entry from {user_registry_path()}")


def options_over(source: str, own: Mapping[str, Value | list[str]]) -> dict[str, Value | list[str]]:
    """Return the options of an entry: those of its source, with its own ones instead of them.

    A chat template that is the one in the file is left out.
    """
    options = {**default_options(source), **own}
    if "chat_template" in own and own["chat_template"] == own_template(source):
        del options["chat_template"]
    return options


def own_template(source: str) -> str:
    """Return the chat template in the file of a model, as a Modelfile has it; "" for a model that is not downloaded."""
    with suppress(NotDownloadedError):
        return open_gguf(find(source)).get("tokenizer.chat_template", str, "").strip("\n")
    return ""


def entry_text(name: str, source: str, options: Mapping[str, Value | list[str]]) -> str:
    """Return an entry as TOML. Raises ModelNotFoundError."""
    is_name = SOURCE_NAME.fullmatch(source)
    place = f"source = {quoted(source)}" if is_name else f"path = {quoted(str(find(source).resolve()))}"
    settings = ", ".join(f"{key} = {toml_value(value)}" for key, value in options.items())
    return f"[models.{quoted(name)}]\n{place}\n" + (f"options = {{ {settings} }}\n" if settings else "")


def write(path: Path, text: str) -> None:
    content = text.encode()
    with atomic_files({path: len(content)}, replace=True) as [file]:
        file.write_at(0, content)


def toml_value(value: Value | list[str]) -> str:
    """Return a value of an option as TOML."""
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(quoted, value))}]"
    return quoted(value) if isinstance(value, str) else str(value).lower()


def quoted(text: str) -> str:
    """Return a basic string of TOML."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")

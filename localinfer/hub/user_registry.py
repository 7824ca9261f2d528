"""Writing entries of the user's models.toml. Comments and entries that are there stay as they are."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path

from localinfer import paths
from localinfer.errors import UsageError
from localinfer.escaping import printable
from localinfer.gguf.atomic_file import atomic_files
from localinfer.hub.model_registry import MODEL_NAME, SOURCE_NAME, model_registry, parse_entry, user_registry_path
from localinfer.hub.resolve import find
from localinfer.options import Value


def add_entry(name: str, source: str, options: Mapping[str, Value | list[str]]) -> None:
    """Append an entry for a model that is on this machine, or for a name of another store.

    Raises UsageError for a name that is invalid or taken, and ModelNotFoundError.
    """
    if not MODEL_NAME.fullmatch(name):
        raise UsageError(f"{printable(name, 80)}: invalid name: only a-z 0-9 . _ -, at most 64 characters")
    path = user_registry_path()
    if name in model_registry().entries:
        raise UsageError(f"{name}: is in use; choose another name, or remove the entry from {path}")
    is_name = SOURCE_NAME.fullmatch(source)
    place = f"source = {quoted(source)}" if is_name else f"path = {quoted(str(find(source).resolve()))}"
    settings = ", ".join(f"{key} = {toml_value(value)}" for key, value in options.items())
    entry = f"[models.{quoted(name)}]\n{place}\n" + (f"options = {{ {settings} }}\n" if settings else "")
    parse_entry(tomllib.loads(entry)["models"][name], name, path.parent)  # checks the values of the options
    paths.private_directory(path.parent)
    before = path.read_text("utf-8-sig").rstrip("\n") if path.exists() else ""
    write(path, f"{before}\n\n{entry}".lstrip("\n"))


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

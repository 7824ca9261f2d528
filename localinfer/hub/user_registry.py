"""Writing entries of the user's models.toml. Comments and entries that are there stay as they are."""

import json
import threading
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from localinfer import paths
from localinfer.errors import UsageError
from localinfer.escaping import printable
from localinfer.gguf.atomic_file import atomic_files
from localinfer.gguf.reader import open_gguf
from localinfer.hub.model_registry import MODEL_NAME, SOURCE_NAME, model_registry, parse_entry, user_registry_path
from localinfer.hub.resolve import NotDownloadedError, default_options, find
from localinfer.options import Value

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

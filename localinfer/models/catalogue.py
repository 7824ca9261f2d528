"""models.toml: models with a short name, where their files come from, and their options.

Ours is read, then the user's laid over it, and every value checked. Knows nothing of what is inside a model, and
fetches nothing. A name never becomes a path: file names in the cache are made of a checked name and a checked digest.
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
from localinfer.options import Layer, from_registry
from localinfer.text import printable

TOML_LIMIT = 1 << 20  # bytes; ours has 5,000
MODEL_NAME = re.compile(r"(?!.*\.gguf$)[a-z0-9][a-z0-9._-]{0,63}")
PINNED_WHEEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9.!+_-]*")
DIGEST = re.compile(r"[0-9a-f]{64}")
SOURCE_NAME = re.compile(r"(hf|ollama|lmstudio|https?):[^\0\s]+")

Table = Mapping[str, object]
FETCHED = {"size", "sha256", "parts"}  # a source is all of these, or a path, or another name
SOURCE = FETCHED | {"path", "source"}


@dataclass(frozen=True, slots=True)
class Part:
    """One member of one wheel."""

    wheel: str  # NAME==VERSION
    bytes: int  # of the wheel
    member: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What models.toml says about one name. Either `path` is set, or `source`, or `size`, `sha256` and `parts` are."""

    name: str
    about: str = ""
    licence: str = ""
    options: Layer = field(default_factory=dict)
    path: Path | None = None
    source: str = ""
    size: int = 0
    sha256: str = ""
    parts: tuple[Part, ...] = ()

    @property
    def file(self) -> Path:
        """Where the model lies once it is there, if it has parts; by the digest in its name it is never out of date."""
        return self.path or paths.models_dir() / f"{self.name}-{self.sha256[:12]}.gguf"

    @property
    def present(self) -> bool:
        """Is the file there? That of a source is for others to say."""
        return self.file.is_file() and (self.path is not None or self.file.stat().st_size == self.size)


class Values(TypedDict, total=False):
    """What one models.toml says about one name: some of Entry's fields, checked."""

    about: str
    licence: str
    options: Layer
    path: Path | None
    source: str
    size: int
    sha256: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All entries by name, and the name of the default one."""

    entries: Mapping[str, Entry]
    default: str


def catalogue() -> Catalogue:
    """Ours with the user's laid over it, key by key. The files are only read again when they have changed."""
    return read(*map(Version.of, (shipped_toml(), user_toml())))


class Version(NamedTuple):
    """A file as it is at some time; `identity` is None while there is none."""

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
def read(ours: Version, users: Version) -> Catalogue:
    """The catalogue that these files make."""
    shipped, own = read_toml(ours.path), read_toml(users.path) if users.identity else {}
    models = models_of(shipped, ours.path, {})
    models = models_of(own, users.path, models)
    default = own.get("default", shipped["default"])
    if not isinstance(default, str) or default not in models:
        given = printable(repr(default), 80) if isinstance(default, str) else "something else"
        raise LocalInferError(f"{users.path}: default: must be the name of a model, not {given}")
    return Catalogue({name: Entry(name=name, **values) for name, values in models.items()}, default)


def shipped_toml() -> Path:
    """In this package's folder where localinfer is installed, beside it in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "models.toml"
    return installed if installed.exists() else package.parent / "models.toml"


def user_toml() -> Path:
    return paths.config_dir() / "models.toml"


def read_toml(path: Path) -> Table:
    """The file's tables. LocalInferError gives the line and the column of a mistake."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # a pipe would make us wait
            raise LocalInferError(f"{path}: is there, and is no file")
        if status.st_size > TOML_LIMIT:
            raise LocalInferError(f"{path}: larger than {TOML_LIMIT:,} bytes")
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise LocalInferError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise LocalInferError(f"{path}: not UTF-8 at byte {error.start}") from None
    except ValueError as error:  # a mistake, or a number of thousands of digits
        raise LocalInferError(f"{path}: {error}") from None
    except RecursionError:
        raise LocalInferError(f"{path}: nested too deeply") from None


def models_of(toml: Table, path: Path, below: Mapping[str, Values]) -> dict[str, Values]:
    """The models of a file laid over those `below`. LocalInferError names the file, the model and the key."""
    warn_of_unknown(toml, {"default", "models"}, str(path))
    models = dict(below)
    for name, table in table_of(toml.get("models", {}), f"{path}: models").items():
        where = f"{path}: {name}"
        if not MODEL_NAME.fullmatch(name):
            raise LocalInferError(f"{path}: {name[:64]!r} cannot be a name: a-z 0-9 . _ - only, at most 64")
        values = values_of(table_of(table, where), where, path.parent)
        models[name] = laid_over(models.get(name, Values()), values, where)
    return models


def laid_over(below: Values, values: Values, where: str) -> Values:
    """Key by key; but a new source takes the place of the old one whole."""
    source = SOURCE & values.keys()
    if source and source not in ({"path"}, {"source"}, FETCHED):
        raise LocalInferError(f"{where}: a model has a path, or a source, or else a size, a sha256 and parts")
    if not source and not below:
        raise LocalInferError(f"{where}: where is it? Needed is a path, a source, or a size, a sha256 and parts")
    kept = {key: value for key, value in below.items() if not source or key not in SOURCE}
    merged = kept | values | {"options": below.get("options", {}) | values.get("options", {})}
    return cast(Values, merged)


def values_of(table: Table, where: str, base: Path) -> Values:
    """One model's table, each value proved to be what it should be. A path is relative to `base`."""
    warn_of_unknown(table, READERS.keys() | {"options"}, where)
    values: dict[str, object] = {}
    for key in READERS.keys() & table.keys():
        try:
            values[key] = READERS[key](table[key])
        except ValueError as problem:
            raise LocalInferError(f"{where}: {key}: {problem}") from None
    if "path" in values:
        values["path"] = base / expanded(str(values["path"]), f"{where}: path")
    if "options" in table:
        values["options"] = from_registry(table_of(table["options"], f"{where}: options"), where)
    return cast(Values, values)


def expanded(path: str, where: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:  # nobody has this name
        raise LocalInferError(f"{where}: {printable(path, 80)}: {error}") from None


def text(value: object) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise ValueError("must be a text")
    return value


def source(value: object) -> str:
    if not SOURCE_NAME.fullmatch(text(value)):
        raise ValueError("must be a name such as hf:OWNER/REPO:QUANT, or an address such as https://HOST/FILE.gguf")
    return text(value)


def size(value: object) -> int:
    if not isinstance(value, int) or not 0 < value < 1 << 50:
        raise ValueError("must be a whole number above 0")
    return value


def digest(value: object) -> str:
    if not DIGEST.fullmatch(text(value)):
        raise ValueError("must be 64 hexadecimal digits in lower case")
    return text(value)


def part(value: object) -> Part:
    if not isinstance(value, dict) or value.keys() != {"wheel", "bytes", "member"}:
        raise ValueError("must be a list of { wheel, bytes, member }")
    if not PINNED_WHEEL.fullmatch(text(value["wheel"])):
        raise ValueError("wheel must be NAME==VERSION")
    return Part(text(value["wheel"]), size(value["bytes"]), text(value["member"]))


def parts(value: object) -> tuple[Part, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError("must be a list of { wheel, bytes, member }")
    return tuple(part(each) for each in value)


READERS: dict[str, Callable[[object], object]] = {
    "about": text, "licence": text, "path": text, "source": source, "size": size, "sha256": digest, "parts": parts,
}  # fmt: skip


def table_of(value: object, where: str) -> Table:
    if not isinstance(value, dict):
        raise LocalInferError(f"{where}: must be a table")
    return value


def warn_of_unknown(table: Table, known: Set[str], where: str) -> None:
    for key in sorted(table.keys() - known):
        warnings.warn(f"{where}: {key!r} means nothing here", stacklevel=2)

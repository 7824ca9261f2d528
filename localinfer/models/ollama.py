"""`ollama:NAME[:TAG]`: models that Ollama has fetched, read where they are.

    manifests/HOST/NAMESPACE/NAME/TAG   JSON: layers, each with a media type, a digest and a size
    blobs/sha256-DIGEST                 what is in a layer: the GGUF file, parameters, a system prompt, ...

Parameters and the system prompt become options of the model. The template is not used, being one of Go: the file has
one of its own.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from localinfer.errors import LocalInferError, ModelNotFound, Unsupported, UsageError
from localinfer.models.stores import Listed, Progress, expanded, is_file, readable
from localinfer.options import Layer, checked
from localinfer.text import printable

TITLE = "Ollama"
USUAL = ("~/.ollama/models", "/usr/share/ollama/.ollama/models")  # the second one is that of its service
WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}")
DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
MANIFEST_LIMIT = TEXT_LIMIT = 1 << 20  # bytes
DEFAULTS = ("registry.ollama.ai", "library")  # of HOST/NAMESPACE/NAME:TAG
KIND = "application/vnd.ollama.image."
PARAMETERS = {  # what Ollama calls our options
    "num_ctx": "ctx_size",
    "num_predict": "n_predict",
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repeat_penalty": "repeat_penalty",
    "repeat_last_n": "repeat_last_n",
    "seed": "seed",
    "stop": "stop",
}


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a model is made of: its layers' blobs and their sizes by kind."""

    path: Path
    layers: Mapping[str, tuple[Path, int]]

    def error(self, problem: str, kind: type[LocalInferError] = LocalInferError) -> LocalInferError:
        return kind(f"{printable(str(self.path))}: {problem}")


def folders() -> list[Path]:
    """The user's own first; OLLAMA_MODELS in the place of all."""
    chosen = os.environ.get("OLLAMA_MODELS")
    return [place for place in map(expanded, [chosen] if chosen else USUAL) if readable(place)]


def find(name: str) -> Path:
    manifest = manifest_of(name)
    if "adapter" in manifest.layers:
        raise manifest.error("has an adapter, which is not supported", Unsupported)
    if "model" not in manifest.layers:
        raise manifest.error("is of no GGUF file", Unsupported)
    file, size = manifest.layers["model"]
    if not is_file(file) or file.stat().st_size != size:
        raise ModelNotFound(f"ollama:{name}: {file} is not there, or not whole; `ollama pull {name}` fetches it")
    return file


def default_options(name: str) -> Layer:
    manifest = manifest_of(name)
    parameters = json_of(manifest, "params")
    given = {ours: parameters[theirs] for theirs, ours in PARAMETERS.items() if theirs in parameters}
    if given.get("n_predict") == -2:  # until the context is full
        del given["n_predict"]
    if system := text_of(manifest, "system"):
        given["system_prompt"] = system
    return checked(given, lambda option: f"{manifest.path}: {option}", LocalInferError)


def listed() -> Iterator[Listed]:
    manifests = [path for folder in folders() for path in sorted((folder / "manifests").glob("*/*/*/*"))]
    for name in dict.fromkeys(name_of(path.parts[-4:]) for path in manifests):
        with suppress(LocalInferError, OSError):
            yield Listed.here(f"ollama:{name}", [find(name)])


def fetch(name: str, _: Progress) -> Path:
    """Only Ollama brings what is its own."""
    return find(name)


def removable(name: str) -> list[Path]:
    find(name)
    raise UsageError(f"ollama:{name}: belongs to Ollama; `ollama rm {name}` removes it")


def manifest_of(name: str) -> Manifest:
    """Raises ModelNotFound; LocalInferError for one that is broken."""
    place = Path(*parts_of(name))
    for folder in folders():
        path = folder / "manifests" / place
        if is_file(path):
            return read_manifest(path, folder / "blobs")
    where = " or ".join(map(str, folders())) or "a folder of Ollama, which is not here"
    raise ModelNotFound(f"ollama:{name}: not in {where}; `ollama pull {name}` fetches it")


def parts_of(name: str) -> tuple[str, ...]:
    """Host, namespace, name and tag. Raises UsageError."""
    path, _, tag = name.partition(":")
    words = path.split("/")
    if not all(map(WORD.fullmatch, [*words, tag or "latest"])) or len(words) > len(DEFAULTS) + 1:
        form = "ollama:NAME, ollama:NAME:TAG or ollama:HOST/NAMESPACE/NAME:TAG"
        raise UsageError(f"ollama:{printable(name, 200)}: must be {form}")
    return (*DEFAULTS[: len(DEFAULTS) + 1 - len(words)], *words, tag or "latest")


def name_of(parts: tuple[str, ...]) -> str:
    """The shortest name that stands for these."""
    *path, tag = parts
    while len(path) > 1 and path[0] == DEFAULTS[len(DEFAULTS) + 1 - len(path)]:
        del path[0]
    return "/".join(path) + (f":{tag}" if tag != "latest" else "")


def read_manifest(path: Path, blobs: Path) -> Manifest:
    layers: dict[str, tuple[Path, int]] = {}
    try:
        for layer in json.loads(read(path, MANIFEST_LIMIT))["layers"]:
            digest = DIGEST.fullmatch(layer["digest"])
            if not digest:
                raise ValueError("a digest")
            kind = str(layer["mediaType"]).removeprefix(KIND)
            layers.setdefault(kind, (blobs / f"sha256-{digest[1]}", int(layer["size"])))
    except (ValueError, TypeError, KeyError, RecursionError):
        raise LocalInferError(f"{printable(str(path))}: is no manifest of Ollama") from None
    return Manifest(path, layers)


def json_of(manifest: Manifest, kind: str) -> Mapping[str, object]:
    """The object that a layer holds; an empty one if there is no such layer."""
    try:
        value = json.loads(text_of(manifest, kind) or "{}")
    except (ValueError, RecursionError):
        raise manifest.error(f"{kind}: is no JSON") from None
    if not isinstance(value, dict):
        raise manifest.error(f"{kind}: must be an object")
    return value


def text_of(manifest: Manifest, kind: str) -> str:
    if kind not in manifest.layers:
        return ""
    try:
        return read(manifest.layers[kind][0], TEXT_LIMIT).decode()
    except UnicodeDecodeError:
        raise manifest.error(f"{kind}: is not valid UTF-8") from None


def read(path: Path, limit: int) -> bytes:
    """A small file, whole."""
    try:
        if not path.is_file():  # a pipe would make us wait
            raise LocalInferError(f"{printable(str(path))}: is no file, or is missing")
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise LocalInferError(f"{printable(str(path))}: {error.strerror}") from None
    if len(content) > limit:
        raise LocalInferError(f"{printable(str(path))}: larger than {limit:,} bytes")
    return content

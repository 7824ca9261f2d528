"""The model store `ollama:NAME[:TAG]`: models that Ollama has downloaded, used without copying.

    manifests/HOST/NAMESPACE/NAME/TAG   JSON: layers, each with a media type, a digest and a size
    blobs/sha256-DIGEST                 a layer: the GGUF file, parameters, a system prompt, ...

Parameters and system prompt become options of the model. The template is not used, because it is a Go template; the
GGUF file has a Jinja template of its own.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from localinfer.errors import LocalInferError, ModelNotFoundError, UnsupportedError, UsageError
from localinfer.escaping import printable
from localinfer.hub.model_store import Progress, StoredModel, expand_user, is_directory, is_file
from localinfer.hub.verification import verify_once
from localinfer.options import Layer, check_values

TITLE = "Ollama"
DEFAULT_DIRECTORIES = ("~/.ollama/models", "/usr/share/ollama/.ollama/models")  # of the user, and of the system service
NAME_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}")
DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
MANIFEST_LIMIT = TEXT_LIMIT = 1 << 20  # bytes
DEFAULTS = ("registry.ollama.ai", "library")  # host and namespace
KIND = "application/vnd.ollama.image."
PARAMETERS = {  # Ollama's parameter -> option
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
    """The manifest of a model: the blob and its size for each kind of layer."""

    path: Path
    layers: Mapping[str, tuple[Path, int]]

    def error(self, problem: str, kind: type[LocalInferError] = LocalInferError) -> LocalInferError:
        return kind(f"{printable(str(self.path))}: {problem}")


def directories() -> list[Path]:
    """Return the model directories: OLLAMA_MODELS, otherwise the defaults of the user and of the service."""
    chosen = os.environ.get("OLLAMA_MODELS")
    return [path for path in map(expand_user, [chosen] if chosen else DEFAULT_DIRECTORIES) if is_directory(path)]


def find(name: str) -> Path:
    """Return the model file. It is verified when it is used for the first time."""
    file = locate(name)
    verify_once(file, digest_of(file), f"ollama:{name}")
    return file


def digest_of(blob: Path) -> str:
    return blob.name.removeprefix("sha256-")


def locate(name: str) -> Path:
    """Return the model file. Raises ModelNotFoundError, UnsupportedError, and LocalInferError for a bad manifest."""
    manifest = load_manifest(name)
    if "adapter" in manifest.layers:
        raise manifest.error("has an adapter, which is not supported", UnsupportedError)
    if "model" not in manifest.layers:
        raise manifest.error("has no GGUF file", UnsupportedError)
    file, size = manifest.layers["model"]
    if not is_file(file) or file.stat().st_size != size:
        raise ModelNotFoundError(f"ollama:{name}: {file} is missing or incomplete; run `ollama pull {name}`")
    return file


def find_projector(name: str) -> Path | None:
    """Return the file with which the model reads images; None if it has none."""
    file, size = load_manifest(name).layers.get("projector", (None, 0))
    return file if file and is_file(file) and file.stat().st_size == size else None


def default_options(name: str) -> Layer:
    manifest = load_manifest(name)
    parameters = read_json(manifest, "params")
    options = {option: parameters[parameter] for parameter, option in PARAMETERS.items() if parameter in parameters}
    if options.get("n_predict") == -2:  # -2: until the context is full
        del options["n_predict"]
    if system := read_text(manifest, "system"):
        options["system_prompt"] = system
    return check_values(options, lambda option: f"{manifest.path}: {option}", LocalInferError)


def licence(name: str) -> str:
    """Return the text of the model's licence, or "" if there is none."""
    return read_text(load_manifest(name), "license")


def list_models() -> Iterator[StoredModel]:
    manifests = [path for folder in directories() for path in sorted((folder / "manifests").glob("*/*/*/*"))]
    for name in dict.fromkeys(name_of(path.parts[-4:]) for path in manifests):
        with suppress(LocalInferError, OSError):
            yield StoredModel.complete(f"ollama:{name}", [locate(name)])


def fetch(name: str, _: Progress) -> Path:
    """Return the file; only Ollama itself can download its models."""
    return find(name)


def digests(name: str) -> Mapping[Path, str]:
    file = locate(name)
    return {file: digest_of(file)}


def removable_files(name: str) -> list[Path]:
    locate(name)
    raise UsageError(f"ollama:{name}: belongs to Ollama; `ollama rm {name}` removes it")


def load_manifest(name: str) -> Manifest:
    """Return the manifest of a model. Raises ModelNotFoundError, and LocalInferError for an invalid manifest."""
    relative_path = Path(*parse_name(name))
    for folder in directories():
        path = folder / "manifests" / relative_path
        if is_file(path):
            return read_manifest(path, folder / "blobs")
    where = " or ".join(map(str, directories())) or "Ollama's directory, which does not exist"
    raise ModelNotFoundError(f"ollama:{name}: not in {where}; run `ollama pull {name}`")


def parse_name(name: str) -> tuple[str, ...]:
    """Return host, namespace, name and tag. Raises UsageError."""
    path, _, tag = name.partition(":")
    components = path.split("/")
    if not all(map(NAME_PART.fullmatch, [*components, tag or "latest"])) or len(components) > len(DEFAULTS) + 1:
        expected = "ollama:NAME, ollama:NAME:TAG or ollama:HOST/NAMESPACE/NAME:TAG"
        raise UsageError(f"ollama:{printable(name, 200)}: must be {expected}")
    return (*DEFAULTS[: len(DEFAULTS) + 1 - len(components)], *components, tag or "latest")


def name_of(components: tuple[str, ...]) -> str:
    """Return the shortest name with these components."""
    *path, tag = components
    while len(path) > 1 and path[0] == DEFAULTS[len(DEFAULTS) + 1 - len(path)]:
        del path[0]
    return "/".join(path) + (f":{tag}" if tag != "latest" else "")


def read_manifest(path: Path, blobs: Path) -> Manifest:
    layers: dict[str, tuple[Path, int]] = {}
    try:
        for layer in json.loads(read_file(path, MANIFEST_LIMIT))["layers"]:
            digest = DIGEST.fullmatch(layer["digest"])
            if not digest:
                raise ValueError("a digest")
            kind, size = str(layer["mediaType"]).removeprefix(KIND), layer["size"]
            if not isinstance(size, int):  # JSON has numbers such as 1e999
                raise TypeError("a size")
            layers.setdefault(kind, (blobs / f"sha256-{digest[1]}", size))
    except (ValueError, TypeError, KeyError, RecursionError):
        raise LocalInferError(f"{printable(str(path))}: not a valid Ollama manifest") from None
    return Manifest(path, layers)


def read_json(manifest: Manifest, kind: str) -> Mapping[str, object]:
    """Return the JSON object of a layer; an empty one if there is no such layer."""
    try:
        value = json.loads(read_text(manifest, kind) or "{}")
    except (ValueError, RecursionError):
        raise manifest.error(f"{kind}: invalid JSON") from None
    if not isinstance(value, dict):
        raise manifest.error(f"{kind}: must be an object")
    return value


def read_text(manifest: Manifest, kind: str) -> str:
    if kind not in manifest.layers:
        return ""
    try:
        return read_file(manifest.layers[kind][0], TEXT_LIMIT).decode()
    except UnicodeDecodeError:
        raise manifest.error(f"{kind}: is not valid UTF-8") from None


def read_file(path: Path, limit: int) -> bytes:
    """Return the content of a small file."""
    try:
        if not path.is_file():  # reading a pipe would block
            raise LocalInferError(f"{printable(str(path))}: missing, or not a regular file")
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise LocalInferError(f"{printable(str(path))}: {error.strerror}") from None
    if len(content) > limit:
        raise LocalInferError(f"{printable(str(path))}: larger than {limit:,} bytes")
    return content

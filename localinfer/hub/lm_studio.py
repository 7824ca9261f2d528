"""The model store `lmstudio:OWNER/REPO[:QUANT]`: models that LM Studio has downloaded, used without copying."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from localinfer.errors import ModelNotFoundError, UsageError
from localinfer.hub.file_selection import group_by_model, parse_reference, select_files
from localinfer.hub.model_store import Progress, StoredModel, all_parts, expand_user, gguf_files, is_directory
from localinfer.options import Layer

TITLE = "LM Studio"
DEFAULT_HOMES = ("~/.lmstudio", "~/.cache/lm-studio")  # current and former home directory
POINTER = "~/.lmstudio-home-pointer"  # a file with the path of the home directory


def directories() -> list[Path]:
    """Return the model directories: those of LM Studio's settings, then the default in each of its home directories."""
    homes = list(map(expand_user, DEFAULT_HOMES))
    with suppress(OSError, UnicodeDecodeError):
        homes.insert(0, expand_user(expand_user(POINTER).read_text("utf-8").strip()))
    candidates = []
    for home in homes:
        with suppress(OSError, ValueError, TypeError, KeyError):
            candidates.append(expand_user(json.loads((home / "settings.json").read_bytes())["downloadsFolder"]))
        candidates.append(home / "models")
    return [path for path in dict.fromkeys(candidates) if path.is_absolute() and is_directory(path)]


def find(name: str) -> Path:
    reference = parse_reference(name, "lmstudio")
    for folder in directories():
        if parts := select_files(gguf_files(folder / reference.repo), reference):
            return folder / reference.repo / parts[0]
    where = " or ".join(map(str, directories())) or "LM Studio's directory, which does not exist"
    raise ModelNotFoundError(f"lmstudio:{name}: not in {where}")


def default_options(_: str) -> Layer:
    return {}


def list_models() -> Iterator[StoredModel]:
    for folder in directories():
        for repo in sorted(each for each in folder.glob("*/*") if is_directory(each)):
            for name, parts in group_by_model(gguf_files(repo), repo.relative_to(folder).as_posix()).items():
                yield StoredModel.complete(f"lmstudio:{name}", [repo / part for part in parts])


def fetch(name: str, _: Progress) -> Path:
    """Return the file; only LM Studio itself can download its models."""
    return find(name)


def digests(name: str) -> Mapping[Path, str]:
    return dict.fromkeys(all_parts(find(name)), "")


def removable_files(name: str) -> list[Path]:
    raise UsageError(f"lmstudio:{name}: {find(name)} belongs to LM Studio; remove it there")

"""Selection of the files of a model in a repository: `OWNER/REPO`, `OWNER/REPO:QUANT` or `OWNER/REPO/FOLDER/FILE.gguf`.

Works on file names only. The selection follows llama.cpp (common/download.cpp): the first file whose name contains the
quantization type; without a type Q4_K_M, then Q8_0, then the first file. Auxiliary files such as mmproj are never
selected as models.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from localinfer.errors import UsageError
from localinfer.escaping import printable
from localinfer.gguf.split_names import NAME as PART
from localinfer.gguf.split_names import split_names

DEFAULT_QUANTS = ("Q4_K_M", "Q8_0")
# Substrings of the names of files that are no models by themselves: projectors, importance matrices and draft heads.
AUXILIARY_FILES = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
COMPONENT = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
REFERENCE = re.compile(rf"(?P<repo>{COMPONENT}/{COMPONENT})(?::(?P<quant>{COMPONENT})|/(?P<file>[^\0\\]+\.gguf))?")
QUANT = re.compile(r"[-.]([A-Za-z0-9_]+)(-\d{5}-of-\d{5})?\.gguf$")


class ModelReference(NamedTuple):
    """A parsed model name. At most one of `quant` and `file` is set."""

    repo: str
    quant: str
    file: str


def parse_reference(name: str, scheme: str) -> ModelReference:
    """Parse a name without its scheme. Raises UsageError."""
    match = REFERENCE.fullmatch(name)
    if not match or ".." in (match["file"] or "").split("/"):
        expected = f"{scheme}:OWNER/REPO, {scheme}:OWNER/REPO:QUANT or {scheme}:OWNER/REPO/FILE.gguf"
        raise UsageError(f"{printable(scheme)}:{printable(name, 200)}: must be {expected}")
    return ModelReference(match["repo"], match["quant"] or "", match["file"] or "")


def select_files(paths: Sequence[str], reference: ModelReference) -> list[str]:
    """Return the files of the referenced model in order; an empty list if one of them is missing."""
    first = reference.file if reference.file in paths else "" if reference.file else first_file(paths, reference.quant)
    parts = all_parts(first)
    return parts if first and set(parts) <= set(paths) else []


def first_file(paths: Sequence[str], quant: str = "") -> str:
    """Return the file of this type, otherwise of the default types; for a split model, its first part."""
    models = [path for path in paths if is_model(path)]
    for each in [quant] if quant else DEFAULT_QUANTS:
        pattern = re.compile(re.escape(each) + "[.-]", re.IGNORECASE)
        if path := next(filter(pattern.search, models), ""):
            return path
    return "" if quant or not models else models[0]


def is_model(path: str) -> bool:
    """Return whether the file is a model, or the first part of one."""
    name = path.rpartition("/")[2]
    part = PART.fullmatch(name)
    return (
        name.endswith(".gguf")
        and not any(auxiliary in name for auxiliary in AUXILIARY_FILES)
        and (part is None or int(part["number"]) == 1)
    )


def all_parts(path: str) -> list[str]:
    """Return the names of all parts of the model that this file belongs to."""
    part = PART.fullmatch(path)
    return split_names(part["prefix"], int(part["count"])) if part else [path]


def matches(reference: ModelReference, path: str) -> bool:
    """Return whether the reference may mean this file, or another part of its model."""
    if reference.file:
        return path in all_parts(reference.file)
    return not reference.quant or reference.quant.upper() == quant_of(path)


def quant_of(path: str) -> str:
    """Return the quantization type at the end of a file name in upper case; "" if there is none."""
    match = QUANT.search(path)
    return match[1].upper() if match else ""


def name_of(first: str, repo: str, paths: Sequence[str]) -> str:
    """Return the shortest name that selects this first file among `paths`."""
    quant = quant_of(first)
    if quant and select_files(paths, ModelReference(repo, quant, "")) == all_parts(first):
        return f"{repo}:{quant}"
    return f"{repo}/{first}"


def group_by_model(paths: Sequence[str], repo: str) -> dict[str, list[str]]:
    """Return the files of every complete model, by name of the model."""
    firsts = [path for path in paths if is_model(path) and set(all_parts(path)) <= set(paths)]
    return {name_of(first, repo, paths): all_parts(first) for first in firsts}


def available_quants(paths: Sequence[str]) -> list[str]:
    """Return the types of the models, or their file names without a type, for an error message."""
    firsts = [path for path in paths if is_model(path)]
    return list(dict.fromkeys(printable(quant_of(path) or path, 80) for path in firsts))

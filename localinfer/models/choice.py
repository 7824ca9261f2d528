"""Which of a repository's files is meant: `OWNER/REPO`, `OWNER/REPO:QUANT` or `OWNER/REPO/FOLDER/FILE.gguf`.

Knows names of files and nothing of where they are. The choice is llama.cpp's (common/download.cpp): the first file with
the type in its name, or without one Q4_K_M, then Q8_0, then the first file at all; never what only goes with a model.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from localinfer.errors import UsageError
from localinfer.files.part_names import NAME as PART
from localinfer.files.part_names import part_names
from localinfer.text import printable

USUAL = ("Q4_K_M", "Q8_0")
COMPANIONS = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")  # in the name of a file: no model by itself
WORD = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
WANTED = re.compile(rf"(?P<repo>{WORD}/{WORD})(?::(?P<quant>{WORD})|/(?P<file>[^\0\\]+\.gguf))?")
QUANT = re.compile(r"[-.]([A-Za-z0-9_]+)(-\d{5}-of-\d{5})?\.gguf$")


class Wanted(NamedTuple):
    """At most one of `quant` and `file` is set."""

    repo: str
    quant: str
    file: str


def wanted(name: str, scheme: str) -> Wanted:
    """What a name says behind its scheme. Raises UsageError."""
    found = WANTED.fullmatch(name)
    if not found or ".." in (found["file"] or "").split("/"):
        form = f"{scheme}:OWNER/REPO, {scheme}:OWNER/REPO:QUANT or {scheme}:OWNER/REPO/FILE.gguf"
        raise UsageError(f"{printable(scheme)}:{printable(name, 200)}: must be {form}")
    return Wanted(found["repo"], found["quant"] or "", found["file"] or "")


def chosen(paths: Sequence[str], what: Wanted) -> list[str]:
    """Of these files those of the model that is meant, in their order; none if not all of it is among them."""
    first = what.file if what.file in paths else "" if what.file else first_file(paths, what.quant)
    parts = siblings(first)
    return parts if first and set(parts) <= set(paths) else []


def first_file(paths: Sequence[str], quant: str = "") -> str:
    """The file of this type, or else the usual one; of a model in several files, the first one."""
    models = [path for path in paths if is_model(path)]
    for each in [quant] if quant else USUAL:
        pattern = re.compile(re.escape(each) + "[.-]", re.IGNORECASE)
        if found := next(filter(pattern.search, models), ""):
            return found
    return "" if quant or not models else models[0]


def is_model(path: str) -> bool:
    """Is it a model, or its first part?"""
    name = path.rpartition("/")[2]
    part = PART.fullmatch(name)
    return (
        name.endswith(".gguf")
        and not any(word in name for word in COMPANIONS)
        and (part is None or int(part["number"]) == 1)
    )


def siblings(path: str) -> list[str]:
    """All files of the model that this one is of."""
    part = PART.fullmatch(path)
    return part_names(part["prefix"], int(part["count"])) if part else [path]


def means(what: Wanted, path: str) -> bool:
    """Could it be this file, or one that belongs to it?"""
    if what.file:
        return path in siblings(what.file)
    return not what.quant or what.quant.upper() == quant_of(path)


def quant_of(path: str) -> str:
    """The type that a file's name ends in, as a user would write it; "" for none."""
    found = QUANT.search(path)
    return found[1].upper() if found else ""


def name_of(first: str, repo: str, paths: Sequence[str]) -> str:
    """The shortest name by which this first file of a model is found among all."""
    quant = quant_of(first)
    if quant and chosen(paths, Wanted(repo, quant, "")) == siblings(first):
        return f"{repo}:{quant}"
    return f"{repo}/{first}"


def models_among(paths: Sequence[str], repo: str) -> dict[str, list[str]]:
    """All whole models among these files: their names, and which files they have."""
    firsts = [path for path in paths if is_model(path) and set(siblings(path)) <= set(paths)]
    return {name_of(first, repo, paths): siblings(first) for first in firsts}


def what_there_is(paths: Sequence[str]) -> list[str]:
    """The models among the files, for a message: by their types, where a file's name has one."""
    firsts = [path for path in paths if is_model(path)]
    return list(dict.fromkeys(printable(quant_of(path) or path, 80) for path in firsts))

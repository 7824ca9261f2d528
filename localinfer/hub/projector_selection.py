"""Selection of the projector (mmproj) of a model among the files of a folder or a repository, by their names.

    mmproj-F16.gguf           of every model of the folder
    mmproj-NAME-F16.gguf      of the models whose names have these words: NAME-Q4_K_M.gguf, NAME-it-Q8_0.gguf

A projector in the folder of the model takes precedence over one in a folder above it. Of several types, F16 does.
"""

import re
from collections.abc import Sequence

from localinfer.hub.file_selection import is_model

WORD = "mmproj"
TYPES = ("f16", "bf16", "f32", "q8_0")  # the preferred first
TYPE = re.compile(r"[-._](b?f(?:16|32)|i?q\d\w*)(?=[-._])")
SEPARATOR = re.compile(r"[-._ ]+")
GENERAL_WORDS = {WORD, "model", "gguf", "ggml", ""}  # of a projector's name, without a meaning


def is_projector(path: str) -> bool:
    """Return whether the name of a file is that of a projector."""
    name = path.rpartition("/")[2].lower()
    return WORD in name and name.endswith(".gguf")


def select_projector(paths: Sequence[str], model: str) -> str:
    """Return the projector of a model; "" if there is none. Paths are relative, with /."""
    folder = model.rpartition("/")[0]
    candidates = [path for path in paths if is_projector(path) and is_above(path.rpartition("/")[0], folder)]
    fitting = [path for path in candidates if words(path) - GENERAL_WORDS <= words(model)]
    if not fitting and len({base_name(path) for path in paths if is_model(path)}) == 1:
        fitting = candidates
    return min(fitting, key=lambda path: (-path.count("/"), type_rank(path), path), default="")


def is_above(folder: str, other: str) -> bool:
    return not folder or f"{other}/".startswith(f"{folder}/")


def words(path: str) -> set[str]:
    """Return the words of a file name without its type."""
    return set(SEPARATOR.split(base_name(path)))


def base_name(path: str) -> str:
    """Return the name of a file in lower case, without its type and the number of its part."""
    name = re.sub(r"-\d{5}-of-\d{5}(?=\.gguf$)", "", path.rpartition("/")[2].lower())
    return TYPE.sub("", name)


def type_rank(path: str) -> int:
    """Return the rank of the type in a name, the preferred type first."""
    match = TYPE.search(path.rpartition("/")[2].lower())
    return TYPES.index(match[1]) if match and match[1] in TYPES else len(TYPES)

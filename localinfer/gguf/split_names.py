"""Split models: the file names, PREFIX-00001-of-00003.gguf, and the metadata keys. This module opens no file."""

import re
from pathlib import Path

SPLIT_NUMBER, SPLIT_COUNT, SPLIT_TENSORS_COUNT = "split.no", "split.count", "split.tensors.count"
NAME = re.compile(r"(?P<prefix>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


def split_names(prefix: str, count: int) -> list[str]:
    """Return the names of all splits, in order."""
    return [f"{prefix}-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]


def split_paths(path: Path, count: int) -> list[Path]:
    """Return the paths of all `count` splits, given one of them; an empty list if its name is not a split name."""
    match = NAME.fullmatch(path.name)
    if not match or int(match["count"]) != count:
        return []
    return [path.with_name(name) for name in split_names(match["prefix"], count)]

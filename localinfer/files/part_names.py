"""What the files of a model are called that has several: PREFIX-00001-of-00003.gguf. Names only; opens nothing."""

import re
from pathlib import Path

NAME = re.compile(r"(?P<prefix>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


def part_names(prefix: str, count: int) -> list[str]:
    """All of them, in their order."""
    return [f"{prefix}-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]


def names_of_parts(path: Path, count: int) -> list[Path]:
    """All files of the model of which `path` is one of `count`; none where its name does not say so."""
    found = NAME.fullmatch(path.name)
    if not found or int(found["count"]) != count:
        return []
    return [path.with_name(name) for name in part_names(found["prefix"], count)]

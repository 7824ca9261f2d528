"""What a model is called, how large it is, its licence: `general.*`, from the directory's name, its README and so on.

A name such as Llama-3.2-1B-Instruct has parts: what is before the size, the size, and what was made of it.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from localinfer.checkpoint.folder import Folder, Table
from localinfer.files.source import Field, SourceTensor

SIZE = re.compile(r"\d+([._]\d+)?[KMBT]", re.IGNORECASE)
FILE_TYPES = {"F32": 0, "F16": 1, "BF16": 32}  # llama.cpp's numbers: "all" or "mostly" of this type
SAMPLING = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
LARGEST_PROPOSAL = 1 << 31
LICENCE = {"license": "license", "license_name": "license.name", "license_link": "license.link"}
LISTS = {"tags": "tags", "language": "languages"}


def fields(folder: Folder, tensors: Collection[SourceTensor]) -> dict[str, Field]:
    """The keys `general.*` but for the architecture."""
    found = {"type": Field.text("model")}
    found |= {key: Field.text(value) for key, value in naming(folder.path, tensors).items()}
    found |= dict(card(folder.text("README.md") or ""))
    found["file_type"] = Field.uint32(file_type(tensors))
    found |= dict(sampling(folder.optional("generation_config.json")))
    return {f"general.{key}": field for key, field in found.items()}


def naming(path: Path, tensors: Iterable[SourceTensor]) -> dict[str, str]:
    """Name, organization, and the parts of the name; the size is counted where the name does not tell it."""
    organization, name = names_of(path.resolve())
    found = {"name": " ".join(titled(word) for word in name.replace("_", " ").split("-"))}
    if organization:
        found["organization"] = organization
    words = name.split("-")
    place = next((place for place, word in enumerate(words) if place and SIZE.fullmatch(word)), None)
    if place is None:
        return found | {"size_label": rounded(sum(tensor.n_elements for tensor in tensors))}
    found |= {"basename": "-".join(words[:place]), "size_label": words[place].upper().replace("_", ".")}
    if words[place + 1 :]:
        found["finetune"] = "-".join(words[place + 1 :])
    return found


def names_of(path: Path) -> tuple[str, str]:
    """The organization, "" if it is not known, and the name: also of models--ORGANIZATION--NAME/snapshots/REVISION."""
    if path.parent.name == "snapshots" and path.parents[1].name.startswith("models--"):
        _, *organization, name = path.parents[1].name.split("--")
        return "--".join(organization), name
    return "", path.name


def titled(word: str) -> str:
    return word if any(char.isdigit() or char.isupper() for char in word) else word.title()


def rounded(n: int) -> str:
    """A number of weights with two digits at least: 135M, 1.2B."""
    power = next(power for power in (4, 3, 2, 1) if n >= 1000**power or power == 1)
    scaled = n / 1000**power
    return f"{scaled:.{max(0, 2 - len(str(round(scaled))))}f}{' KMBT'[power]}"


def file_type(tensors: Collection[SourceTensor]) -> int:
    """The number of the type that most weights have."""
    sizes = {name: sum(each.n_elements for each in tensors if each.type_name == name) for name in FILE_TYPES}
    return FILE_TYPES[max(sizes, key=lambda name: sizes[name])]


def card(readme: str) -> Iterator[tuple[str, Field]]:
    """Licence, tags and languages from the lines between two `---` at the beginning of README.md.

    They are YAML; of that, only values on a line and lists of them are understood here.
    """
    head = re.match(r"---\n(.*?)\n---\s*(\n|$)", readme.replace("\r\n", "\n"), re.DOTALL)
    entries = re.findall(r"^([\w-]+):[ \t]*(.*(?:\n[ \t]*-[ \t].*)*)", head[1] if head else "", re.MULTILINE)
    values = dict(entries)
    for key, name in LICENCE.items():
        if unquoted(values.get(key, "")):
            yield name, Field.text(unquoted(values[key]))
    for key, name in LISTS.items():
        if found := listed(values.get(key, "")):
            yield name, Field.texts(found)


def listed(value: str) -> list[str]:
    """`a`, `[a, b]` or a line for each."""
    first, *rest = value.split("\n")
    inline = first.strip().removeprefix("[").removesuffix("]").split(",")
    items = [*inline, *(line.strip().removeprefix("-") for line in rest)]
    return [text for item in items if (text := unquoted(item))]


def unquoted(value: str) -> str:
    return value.strip().strip("\"'")


def sampling(generation: Table) -> Iterator[tuple[str, Field]]:
    """What generation_config.json proposes."""
    for key, name in SAMPLING.items():
        value = generation.get(key, float, None)
        if value is not None and abs(value) < LARGEST_PROPOSAL:
            whole = key == "top_k"
            yield f"sampling.{name}", Field.number(int(value), "<i4") if whole else Field.float32(value)

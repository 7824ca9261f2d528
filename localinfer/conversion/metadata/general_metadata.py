"""The `general.*` metadata: model name, size label, license, sampling defaults; from the directory name, README and
more.

A name such as Llama-3.2-1B-Instruct consists of basename, size label and finetune.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from localinfer.conversion.checkpoint_folder import CheckpointFolder, JsonObject
from localinfer.gguf.file_types import NUMBERS
from localinfer.gguf.source import Field, SourceTensor

SIZE = re.compile(r"\d+([._]\d+)?[KMBT]", re.IGNORECASE)
FLOAT_TYPES = ("F32", "F16", "BF16")
SAMPLING = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
MAX_SAMPLING_VALUE = 1 << 31
LICENCE = {"license": "license", "license_name": "license.name", "license_link": "license.link"}
LISTS = {"tags": "tags", "language": "languages"}


def fields(folder: CheckpointFolder, tensors: Collection[SourceTensor]) -> dict[str, Field]:
    """Return the keys `general.*` except the architecture."""
    metadata = {"type": Field.text("model")}
    metadata |= {key: Field.text(value) for key, value in name_fields(folder.path, tensors).items()}
    metadata |= dict(model_card_fields(folder.read_text("README.md") or ""))
    metadata["file_type"] = Field.uint32(file_type(tensors))
    metadata |= dict(sampling_fields(folder.optional_json("generation_config.json")))
    return {f"general.{key}": field for key, field in metadata.items()}


def name_fields(path: Path, tensors: Iterable[SourceTensor]) -> dict[str, str]:
    """Return the name, its components and the organization; the size label is computed if the name has none."""
    organization, name = organization_and_name(path.resolve())
    metadata = {"name": " ".join(title_case(component) for component in name.replace("_", " ").split("-"))}
    if organization:
        metadata["organization"] = organization
    components = name.split("-")
    index = next((index for index, component in enumerate(components) if index and SIZE.fullmatch(component)), None)
    if index is None:
        return metadata | {"size_label": format_size_label(sum(tensor.n_elements for tensor in tensors))}
    metadata |= {"basename": "-".join(components[:index]), "size_label": components[index].upper().replace("_", ".")}
    if components[index + 1 :]:
        metadata["finetune"] = "-".join(components[index + 1 :])
    return metadata


def organization_and_name(path: Path) -> tuple[str, str]:
    """Return the organization ("" if unknown) and the name, also of models--ORGANIZATION--NAME/snapshots/REVISION."""
    if path.parent.name == "snapshots" and path.parents[1].name.startswith("models--"):
        _, *organization, name = path.parents[1].name.split("--")
        return "--".join(organization), name
    return "", path.name


def title_case(text: str) -> str:
    """Capitalize a component of a name, unless it has digits or capitals."""
    return text if any(char.isdigit() or char.isupper() for char in text) else text.title()


def format_size_label(n: int) -> str:
    """Format a number of weights with at least two digits: 135M, 1.2B."""
    power = next(power for power in (4, 3, 2, 1) if n >= 1000**power or power == 1)
    scaled = n / 1000**power
    return f"{scaled:.{max(0, 2 - len(str(round(scaled))))}f}{' KMBT'[power]}"


def file_type(tensors: Collection[SourceTensor]) -> int:
    """Return llama.cpp's file type number of the tensor type that most weights have."""
    sizes = {name: sum(each.n_elements for each in tensors if each.type_name == name) for name in FLOAT_TYPES}
    return NUMBERS[max(sizes, key=lambda name: sizes[name])]


def model_card_fields(readme: str) -> Iterator[tuple[str, Field]]:
    """Yield license, tags and languages from the YAML front matter of README.md.

    Only values on one line and lists of them are parsed.
    """
    head = re.match(r"---\n(.*?)\n---\s*(\n|$)", readme.replace("\r\n", "\n"), re.DOTALL)
    entries = re.findall(r"^([\w-]+):[ \t]*(.*(?:\n[ \t]*-[ \t].*)*)", head[1] if head else "", re.MULTILINE)
    values = dict(entries)
    for key, name in LICENCE.items():
        if strip_quotes(values.get(key, "")):
            yield name, Field.text(strip_quotes(values[key]))
    for key, name in LISTS.items():
        if items := parse_list(values.get(key, "")):
            yield name, Field.texts(items)


def parse_list(value: str) -> list[str]:
    """Parse `a`, `[a, b]` or one item per line."""
    first, *rest = value.split("\n")
    inline = first.strip().removeprefix("[").removesuffix("]").split(",")
    items = [*inline, *(line.strip().removeprefix("-") for line in rest)]
    return [text for item in items if (text := strip_quotes(item))]


def strip_quotes(value: str) -> str:
    """Return a YAML value without surrounding space and quotes."""
    return value.strip().strip("\"'")


def sampling_fields(generation: JsonObject) -> Iterator[tuple[str, Field]]:
    """Yield the sampling defaults of generation_config.json."""
    for key, name in SAMPLING.items():
        value = generation.get(key, float, None)
        if value is not None and abs(value) < MAX_SAMPLING_VALUE:
            whole = key == "top_k"
            yield f"sampling.{name}", Field.number(int(value), "<i4") if whole else Field.float32(value)

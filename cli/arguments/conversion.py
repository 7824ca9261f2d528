"""The command lines of llama.cpp's convert_hf_to_gguf.py and llama-export-lora as those of `localinfer quantize`.

    convert_hf_to_gguf.py DIR --outfile model.gguf --outtype f16
    quantize DIR model.gguf F16

    llama-export-lora -m model.gguf -o merged.gguf --lora-scaled adapter.gguf 0.5
    quantize model.gguf merged.gguf COPY --lora-scaled adapter.gguf:0.5

`translation` explains the flags that have no equivalent.
"""

from pathlib import Path

from cli.arguments.translation import split_flag
from localinfer.errors import UsageError

VALUES = ("--outfile", "--outtype", "--model-name")
PASSED_ON = ("--target-model-dir", "--metadata", "--split-max-tensors", "--split-max-size")  # with their value
AUTO = "auto"
MERGED = "ggml-lora-merged-f16.gguf"
EXPORT_FLAGS = {"-m": "MODEL", "--model": "MODEL", "-o": "OUT", "--output": "OUT", "--output-file": "OUT"}


def convert_words(arguments: list[str]) -> list[str]:
    """Return the words of `localinfer quantize` for a conversion. Raises UsageError for a flag without its value."""
    values: dict[str, str] = {}
    directories: list[str] = []
    others: list[str] = []
    rest = iter(arguments)
    for word in rest:
        name, equals, value = split_flag(word)
        if name in VALUES + PASSED_ON:
            value = value if equals else next(rest, "")
            if not value:
                raise UsageError(f"{name}: missing value")
            if name in VALUES:
                values[name] = value
            else:
                others += [name, value]
        else:
            (others if word.startswith("-") else directories).append(word)
    if "-h" in others or "--help" in others:
        return ["quantize", "--help"]
    if len(directories) != 1:
        raise UsageError("convert_hf_to_gguf.py: requires one checkpoint directory")
    type = values.get("--outtype", AUTO)
    if type == AUTO:
        type = original_type(Path(directories[0]))
    out = [values["--outfile"].replace("{ftype}", type.lower())] if "--outfile" in values else []
    if "--model-name" in values:
        others += ["--override-kv", f"general.name=str:{values['--model-name']}"]
    return ["quantize", *directories, *out, type.upper(), *others]


def original_type(directory: Path) -> str:
    """Return the 16-bit type that holds the weights of a checkpoint best."""
    try:
        config = (directory / "config.json").read_text(encoding="utf-8", errors="replace")
    except OSError:  # `quantize` reports it
        return "BF16"
    return "F16" if '"float16"' in config else "BF16"


def export_words(arguments: list[str]) -> list[str]:
    """Return the words of `localinfer quantize` for a merge of adapters. Raises UsageError for a missing value.

    The scale of --lora-scaled may also be a word of its own, as in older versions.
    """
    named = {"OUT": MERGED}
    others: list[str] = []
    rest = list(arguments)
    while rest:
        name, equals, value = split_flag(rest.pop(0))
        if name in EXPORT_FLAGS or name == "--lora-scaled":
            if not equals and not rest:
                raise UsageError(f"{name}: missing value")
            value = value if equals else rest.pop(0)
            if name in EXPORT_FLAGS:
                named[EXPORT_FLAGS[name]] = value
                continue
            if ":" not in value and rest and not rest[0].startswith("-"):
                value += f":{rest.pop(0)}"
            others += [name, value]
        else:
            others.append(f"{name}={value}" if equals else name)
    if "-h" in others or "--help" in others:
        return ["quantize", "--help"]
    if "MODEL" not in named:
        raise UsageError("export-lora: requires -m FILE")
    return ["quantize", named["MODEL"], named["OUT"], "COPY", *others]

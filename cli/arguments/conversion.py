"""The command lines of llama.cpp's programs for files as ours.

    convert_hf_to_gguf.py DIR --outfile model.gguf --outtype f16
    quantize DIR model.gguf F16

    llama-export-lora -m model.gguf -o merged.gguf --lora-scaled adapter.gguf 0.5
    quantize model.gguf merged.gguf COPY --lora-scaled adapter.gguf:0.5

    gguf-set-metadata model.gguf general.name Tiny
    edit model.gguf --set general.name=Tiny

    gguf-new-metadata model.gguf new.gguf --chat-template-file template.jinja
    edit model.gguf -o new.gguf --set-file tokenizer.chat_template=template.jinja

`translation` explains the flags that have no equivalent.
"""

from pathlib import Path

from cli.arguments.translation import split_flag
from localinfer.errors import UsageError

VALUES = ("--outfile", "--outtype", "--model-name")
PASSED_ON = ("--target-model-dir", "--metadata", "--split-max-tensors", "--split-max-size")  # with their value
AUTO = "auto"
MERGED = "ggml-lora-merged-f16.gguf"
SPECIAL_TOKEN = "--special-token-by-id"
NEW_METADATA = {  # of gguf-new-metadata: the option of `edit`, and what comes before its value
    "--general-name": ("--set", "general.name="),
    "--general-description": ("--set", "general.description="),
    "--chat-template": ("--set", "tokenizer.chat_template="),
    "--chat-template-file": ("--set-file", "tokenizer.chat_template="),
    "--pre-tokenizer": ("--set", "tokenizer.ggml.pre="),
    "--remove-metadata": ("--remove", ""),
}
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


def set_metadata_words(arguments: list[str]) -> list[str]:
    """Return the words of `localinfer edit` for gguf-set-metadata FILE KEY VALUE. Raises UsageError."""
    words = [word for word in arguments if word not in ("--force", "--verbose")]  # nothing is asked
    if "-h" in words or "--help" in words:
        return ["edit", "--help"]
    flags = [word for word in words if word.startswith("--")]
    positionals = [word for word in words if not word.startswith("--")]
    if len(positionals) != 3:
        raise UsageError("gguf-set-metadata: requires FILE KEY VALUE")
    file, key, value = positionals
    return ["edit", file, "--set", f"{key}={value}", *flags]


def new_metadata_words(arguments: list[str]) -> list[str]:
    """Return the words of `localinfer edit` for gguf-new-metadata IN OUT. Raises UsageError."""
    positionals: list[str] = []
    words: list[str] = []
    rest = list(arguments)
    while rest:
        name, equals, value = split_flag(rest.pop(0))
        n_values = 2 if name == SPECIAL_TOKEN else 1
        if name in NEW_METADATA or name == SPECIAL_TOKEN:
            values = [value] if equals else []
            values += [rest.pop(0) for _ in range(n_values - len(values)) if rest]
            if len(values) < n_values:
                raise UsageError(f"{name}: missing value")
            option, key = NEW_METADATA.get(name, ("--set", ""))
            if name == SPECIAL_TOKEN:
                key, values = f"tokenizer.ggml.{values[0]}_token_id=", values[1:]
            words += [option, f"{key}{values[0]}"]
        elif name.startswith("-"):
            words += [name] if name != "--verbose" else []
        else:
            positionals.append(name)
    if "-h" in words or "--help" in words:
        return ["edit", "--help"]
    if len(positionals) != 2:
        raise UsageError("gguf-new-metadata: requires IN OUT")
    return ["edit", positionals[0], "-o", positionals[1], *words]

"""Ollama's Modelfile as an entry of models.toml: the model, its options and its system prompt.

    FROM smollm2
    PARAMETER temperature 0.5
    SYSTEM \"\"\"Answer in one sentence.\"\"\"

What an entry cannot have, such as an adapter or a template in Go's language, is an error.
"""

import re
from pathlib import Path
from typing import NamedTuple

from localinfer.errors import LocalInferError, UnsupportedError
from localinfer.escaping import printable

INSTRUCTION = re.compile(
    r'[ \t]*(?P<name>[A-Za-z]+)[ \t]+(?P<value>"""(?s:.*?)"""|[^\n]*)(?:\n|$)'
    r"|[ \t]*(?:#[^\n]*)?(?:\n|$)"  # an empty line, or a comment
)
OPTIONS = {  # Ollama's name: ours, if it differs
    "num_ctx": "ctx_size", "num_predict": "n_predict", "temperature": "temp", "num_thread": "threads",
    "num_batch": "batch_size", "num_keep": "keep", "mirostat_eta": "mirostat_lr", "mirostat_tau": "mirostat_ent",
}  # fmt: skip
KNOWN = {
    *OPTIONS, "top_k", "top_p", "min_p", "typical_p", "repeat_penalty", "repeat_last_n", "presence_penalty",
    "frequency_penalty", "seed", "stop", "mirostat",
}  # fmt: skip
WITHOUT_EFFECT = {"num_gpu", "main_gpu", "use_mmap", "use_mlock", "numa", "low_vram", "f16_kv"}
UNSUPPORTED = {
    "ADAPTER": "adapters are not supported",
    "TEMPLATE": "templates of Ollama are not supported; the chat template is that of the model file",
    "MESSAGE": "examples of a conversation are not supported; put them in SYSTEM",
}
IGNORED = {"LICENSE", "PARSER", "RENDERER", "REQUIRES"}


class Modelfile(NamedTuple):
    """The model that FROM names, and the options of the new entry."""

    source: str
    options: dict[str, int | float | str | list[str]]


def parse_modelfile(text: str, name: str) -> Modelfile:
    """Parse a Modelfile. Raises LocalInferError with `name` for an invalid one, UnsupportedError."""
    source, options, position = "", dict[str, int | float | str | list[str]](), 0
    text = text.replace("\r\n", "\n")
    while position < len(text):
        match = INSTRUCTION.match(text, position)
        if not match:
            line = text.count("\n", 0, position) + 1
            raise LocalInferError(f"{name}: line {line}: must be an instruction and a value, such as FROM smollm2")
        position = match.end()
        instruction, value = (match["name"] or "").upper(), unquote(match["value"] or "")
        if instruction in UNSUPPORTED:
            raise UnsupportedError(f"{name}: {instruction}: {UNSUPPORTED[instruction]}")
        if instruction == "FROM":
            source = value
        elif instruction == "SYSTEM":
            options["system_prompt"] = value
        elif instruction == "PARAMETER":
            add_parameter(options, value, name)
        elif instruction and instruction not in IGNORED:
            raise LocalInferError(f"{name}: {printable(instruction, 40)}: no such instruction")
    if not source:
        raise LocalInferError(f"{name}: FROM is missing")
    return Modelfile(source, options)


def add_parameter(options: dict[str, int | float | str | list[str]], text: str, name: str) -> None:
    """Add the option of a PARAMETER instruction; `stop` may be repeated."""
    parameter, _, value = text.partition(" ")
    value = unquote(value.strip())
    if parameter in WITHOUT_EFFECT:
        return
    if parameter not in KNOWN:
        raise UnsupportedError(f"{name}: PARAMETER {printable(parameter, 40)}: not supported")
    if parameter == "stop":
        stops = options.setdefault("stop", [])
        assert isinstance(stops, list)
        stops.append(value)
        return
    try:
        options[OPTIONS.get(parameter, parameter)] = float(value) if re.search("[.eE]", value) else int(value)
    except ValueError:
        raise LocalInferError(f"{name}: PARAMETER {parameter}: must be a number, not {printable(value, 40)}") from None


def unquote(text: str) -> str:
    """Return a value without the quotation marks around it."""
    text = text.strip()
    for mark in ('"""', '"'):
        if len(text) >= 2 * len(mark) and text.startswith(mark) and text.endswith(mark):
            return text[len(mark) : -len(mark)].strip("\n" if mark == '"""' else "")
    return text


def resolve_source(source: str, modelfile: Path) -> str:
    """Return the name or path that FROM names; a path is relative to the directory of the Modelfile."""
    path = modelfile.parent / Path(source).expanduser()
    return str(path.resolve()) if path.exists() else source

"""Ollama's Modelfile as an entry of models.toml: the model, its options and its system prompt.

    FROM smollm2
    PARAMETER temperature 0.5
    SYSTEM \"\"\"Answer in one sentence.\"\"\"

PARAMETER also takes the options that only localinfer has, and TEMPLATE a Jinja template. What an entry cannot have,
such as an adapter or a template in Go's language, is an error.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from localinfer.errors import LocalInferError, UnsupportedError
from localinfer.escaping import printable
from localinfer.options import FLAGS, Value, check_values

INSTRUCTION = re.compile(
    r'[ \t]*(?P<name>[A-Za-z]+)[ \t]+(?P<value>"""(?s:.*?)"""|[^\n]*)(?:\n|$)'
    r"|[ \t]*(?:#[^\n]*)?(?:\n|$)"  # an empty line, or a comment
)
OPTIONS = {  # Ollama's name: ours, if it differs
    "num_ctx": "ctx_size", "num_predict": "n_predict", "temperature": "temp", "num_thread": "threads",
    "num_batch": "batch_size", "num_keep": "keep", "mirostat_eta": "mirostat_lr", "mirostat_tau": "mirostat_ent",
}  # fmt: skip
INSTRUCTION_OPTIONS = {"system_prompt", "chat_template", "chat_template_file"}  # set by SYSTEM and TEMPLATE
KNOWN = {  # Ollama's parameters, which are numbers except for `stop`
    *OPTIONS, "top_k", "top_p", "min_p", "typical_p", "repeat_penalty", "repeat_last_n", "presence_penalty",
    "frequency_penalty", "seed", "stop", "mirostat",
}  # fmt: skip
WITHOUT_EFFECT = {"num_gpu", "main_gpu", "use_mmap", "use_mlock", "numa", "low_vram", "f16_kv"}
UNSUPPORTED = {
    "ADAPTER": "adapters are not supported",
    "MESSAGE": "examples of a conversation are not supported; put them in SYSTEM",
}
IGNORED = {"LICENSE", "PARSER", "RENDERER", "REQUIRES"}
GO_TEMPLATE = re.compile(r"\{\{-?\s*(?:[.$]|(?:if|range|with|else|end|define|block|template)\b)")
GO_TEMPLATE_PROBLEM = "templates of Ollama are not supported; the chat template is that of the model file"

OptionValues = dict[str, Value | list[str]]


class Modelfile(NamedTuple):
    """The model that FROM names, and the options of the new entry."""

    source: str
    options: OptionValues


def parse_modelfile(text: str, name: str) -> Modelfile:
    """Parse a Modelfile. Raises LocalInferError with `name` for an invalid one, UnsupportedError."""
    source, options = "", OptionValues()
    for instruction, value in read_instructions(text, name):
        if instruction in UNSUPPORTED:
            raise UnsupportedError(f"{name}: {instruction}: {UNSUPPORTED[instruction]}")
        if instruction == "FROM":
            source = value
        elif instruction == "SYSTEM":
            options["system_prompt"] = value
        elif instruction == "TEMPLATE":
            options["chat_template"] = jinja_template(value, name)
        elif instruction == "PARAMETER":
            add_parameter(options, value, name)
        elif instruction not in IGNORED:
            raise LocalInferError(f"{name}: {printable(instruction, 40)}: no such instruction")
    if not source:
        raise LocalInferError(f"{name}: FROM is missing")
    return Modelfile(source, options)


def read_instructions(text: str, name: str) -> Iterator[tuple[str, str]]:
    """Yield the instructions in upper case, each with its value. Raises LocalInferError for a line that is none."""
    text, position = text.replace("\r\n", "\n"), 0
    while position < len(text):
        match = INSTRUCTION.match(text, position)
        if not match:
            line = text.count("\n", 0, position) + 1
            raise LocalInferError(f"{name}: line {line}: must be an instruction and a value, such as FROM smollm2")
        position = match.end()
        if match["name"]:
            yield match["name"].upper(), unquote(match["value"])


def jinja_template(text: str, name: str) -> str:
    """Return the template of a TEMPLATE instruction. Raises UnsupportedError if it is one in Go's language."""
    if GO_TEMPLATE.search(text):
        raise UnsupportedError(f"{name}: TEMPLATE: {GO_TEMPLATE_PROBLEM}")
    if "{{" not in text and "{%" not in text:
        raise LocalInferError(f"{name}: TEMPLATE: contains neither {{{{ nor {{%")
    return text


def split_parameter(text: str) -> tuple[str, str]:
    """Return the name and the value of a PARAMETER instruction."""
    parameter, _, value = text.partition(" ")
    return parameter, unquote(value)


def add_parameter(options: OptionValues, text: str, name: str) -> None:
    """Add the option of a PARAMETER instruction."""
    parameter, value = split_parameter(text)
    set_parameter(options, parameter, value, f"{name}: PARAMETER {printable(parameter, 40)}")


def set_parameter(options: OptionValues, parameter: str, value: str, where: str) -> None:
    """Add the option of a parameter. One with several values, such as `stop`, is repeated.

    Raises LocalInferError that begins with `where`, UnsupportedError for an unknown parameter.
    """
    option = OPTIONS.get(parameter, parameter)
    if parameter in WITHOUT_EFFECT:
        return
    if option not in FLAGS or option in INSTRUCTION_OPTIONS:
        raise UnsupportedError(f"{where}: not supported")
    if FLAGS[option].value_type is tuple:
        values = options.setdefault(option, [])
        assert isinstance(values, list)
        values.append(value)
        return
    if parameter not in KNOWN:
        options |= check_values({option: value}, lambda _: where, texts=True)
        return
    try:
        options[option] = float(value) if re.search("[.eE]", value) else int(value)
    except ValueError:
        raise LocalInferError(f"{where}: must be a number, not {printable(value, 40)}") from None


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

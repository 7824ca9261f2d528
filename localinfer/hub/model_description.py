"""What is known about a model, as `ollama show` prints it: a Modelfile, its parameters, system prompt and licence.

    description = describe("smollm2", open_gguf(find("smollm2")), template)
    description.modelfile()     FROM, TEMPLATE, PARAMETER, SYSTEM and LICENSE, as `modelfile.parse_modelfile` reads them
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from localinfer.errors import LocalInferError
from localinfer.escaping import printable
from localinfer.gguf.reader import GGUF
from localinfer.hub import ollama
from localinfer.hub.modelfile import INSTRUCTION_OPTIONS, OPTIONS, read_instructions, split_parameter
from localinfer.hub.resolve import default_options, registry_entry, resolve
from localinfer.options import Value, from_metadata

OLLAMA_NAMES = {option: name for name, option in OPTIONS.items()}
NAME_COLUMNS = 30  # of a parameter's name, as in Ollama's list


class ModelDescription(NamedTuple):
    """What a Modelfile tells about a model."""

    name: str
    file: Path
    template: str
    parameters: list[tuple[str, str]]  # by Ollama's names; an option with several values is repeated
    system: str
    licence: str

    def modelfile(self) -> str:
        """Return a Modelfile. An instruction that the format cannot represent is a comment."""
        instructions = [
            ("FROM", str(self.file.absolute())),
            ("TEMPLATE", in_quotes(self.template)),
            *(("PARAMETER", f"{name} {parameter_text(value)}") for name, value in self.parameters),
            ("SYSTEM", in_quotes(self.system)),
            ("LICENSE", in_quotes(self.licence)),
        ]
        head = f"# Modelfile written by `localinfer show`. FROM also takes a name:\n# FROM {printable(self.name)}\n\n"
        return head + "".join(instruction_text(*each) for each in instructions if each[1])

    def parameter_lines(self) -> list[str]:
        """Return the parameters as `ollama show --parameters` shows them."""
        return [f"{name:{NAME_COLUMNS}} {parameter_text(value)}" for name, value in self.parameters]


def describe(name: str, f: GGUF, template: str) -> ModelDescription:
    """Describe the model with this name or path, whose file is `f` and which uses the chat template `template`."""
    options = from_metadata(f.metadata, f.path) | default_options(name)
    system = str(options.get("system_prompt", ""))
    return ModelDescription(name, f.path, template, list(list_parameters(options)), system, licence(name, f))


def list_parameters(options: Mapping[str, Value]) -> Iterator[tuple[str, str]]:
    for option, value in options.items():
        if option not in INSTRUCTION_OPTIONS:
            for each in value if isinstance(value, tuple) else (value,):
                yield OLLAMA_NAMES.get(option, option), str(each).lower() if isinstance(each, bool) else str(each)


def licence(name: str, f: GGUF) -> str:
    """Return the text or the name of the licence, or "" if it is not known."""
    resolved, entry = resolve(name), registry_entry(name)
    text = ollama.licence(resolved.name) if resolved and resolved.store.TITLE == ollama.TITLE else ""
    return text or (entry.licence if entry else "") or f.get("general.license", str, "")


def in_quotes(text: str) -> str:
    return f'"""{text}"""' if text else ""


def parameter_text(value: str) -> str:
    """Return a value in quotation marks, except for a number or a word."""
    return value if value.replace(".", "").replace("-", "").replace("_", "").isalnum() else f'"{value}"'


def instruction_text(instruction: str, value: str) -> str:
    """Return an instruction. If it does not mean the same when it is read, it becomes a comment.

    The format has no escape sequences, so a text with three quotation marks has no form.
    """
    text = f"{instruction} {value}\n"
    return text if is_read_as(text, instruction, value) else "".join(f"# {line}\n" for line in text.splitlines())


def is_read_as(text: str, instruction: str, value: str) -> bool:
    """Return whether the text is one instruction with this value. Newlines around a text are not part of it."""
    try:
        [(actual, content)] = read_instructions(text, "")
    except (LocalInferError, ValueError):
        return False
    if instruction == "PARAMETER":
        name, _, quoted = value.partition(" ")
        return split_parameter(content) == (name, quoted[1:-1] if quoted[0] == '"' else quoted)
    return (actual, content) == (instruction, value.removeprefix('"""').removesuffix('"""').strip("\n"))

"""The parts of a model's description that `localinfer show` prints alone, as `ollama show` does."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.terminal import screen
from localinfer.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from localinfer.gguf.reader import GGUF

NOTHING = {
    "template": "the model has no chat template",
    "parameters": "the model has no parameters of its own",
    "system": "the model has no system prompt of its own",
    "license": "the licence is not known",
}


@dataclass(frozen=True, kw_only=True)
class PartOptions:
    """The part of the description to print; at most one."""

    modelfile: Annotated[bool, typer.Option("--modelfile", help="Print a Modelfile, which `create -f` reads.")] = False
    template: Annotated[bool, typer.Option("--template", help="Print the chat template.")] = False
    parameters: Annotated[bool, typer.Option("--parameters", help="Print the options of the model.")] = False
    system: Annotated[bool, typer.Option("--system", help="Print the system prompt.")] = False
    license: Annotated[bool, typer.Option("--license", help="Print the licence.")] = False
    points: Annotated[
        bool, typer.Option("--points", help="List the points at which hooks in Python read and change activations.")
    ] = False

    def wanted(self, *, as_json: bool) -> str:
        """Return the name of the part, or "" for the whole report. Raises UsageError if there are several; only the
        points can be printed as JSON."""
        names = [each.name for each in dataclasses.fields(self) if getattr(self, each.name)]
        if len(names) + (as_json and not self.points) > 1:
            given = [f"--{name}" for name in (*names, *(["json"] if as_json else []))]
            raise UsageError(f"{' and '.join(given)}: only one of them can be used")
        return names[0] if names else ""


def show_part(name: str, path: Path, part: str) -> None:
    """Print one part of the description of a model."""
    from localinfer.gguf.reader import open_gguf
    from localinfer.hub.model_description import describe

    f = open_gguf(path)
    description = describe(name, f, chat_template(name, f))
    texts = {
        "modelfile": description.modelfile(),
        "template": description.template,
        "parameters": "\n".join(description.parameter_lines()),
        "system": description.system,
        "license": description.licence,
    }
    if text := texts[part]:
        screen.write(text if text.endswith("\n") else f"{text}\n")
    else:
        screen.note(f"{screen.one_line(name)}: {NOTHING[part]}")


def chat_template(name: str, f: "GGUF") -> str:
    """Return the chat template that a chat with the model would use, or "" if there is none."""
    from localinfer.chat_template.template_selection import select_template
    from localinfer.hub import resolve
    from localinfer.options import merge

    try:
        return select_template(f, merge(resolve.default_options(name)), with_tools=False).text
    except UnsupportedError:
        return ""

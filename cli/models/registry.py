"""The commands `localinfer cp` and `create`: further entries of the user's models.toml, as `ollama cp` and `create`."""

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from cli.files.text_input import read_text_file
from cli.terminal import screen
from localinfer import paths
from localinfer.gguf.reader import open_gguf
from localinfer.hub import modelfile, user_registry
from localinfer.hub.resolve import NotDownloadedError, default_options, find, user_registry_path


def cp_command(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Path of a GGUF file, or a model name.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new name.")],
) -> None:
    """Give a model another name in models.toml.

    The file is not copied. The new name has the options of SOURCE.

    \b
    Examples:
      localinfer cp smollm2 small
    """
    user_registry.add_entry(name, source, default_options(source))
    screen.note(f"{name}: added to {user_registry_path()}")


def create_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new name.")],
    file: Annotated[
        Path, typer.Option("-f", "--file", metavar="FILE", help="Modelfile of Ollama.")
    ] = Path("Modelfile"),
    type: Annotated[
        str | None, typer.Option("-q", "--quantize", metavar="TYPE", help="Quantize the model to this type first.")
    ] = None,
) -> None:
    """Create a model from a Modelfile.

    The model is a name in models.toml with a file, options, a system prompt and a chat template. FROM, PARAMETER,
    SYSTEM and a TEMPLATE in Jinja are supported; an adapter, or a template in Go's language, is an error.
    `localinfer show MODEL --modelfile` writes a Modelfile.

    \b
    Examples:
      localinfer create mario -f Modelfile
    """
    parsed = modelfile.parse_modelfile(read_text_file(str(file)), str(file))
    source = modelfile.resolve_source(parsed.source, file)
    options = {**default_options(source), **parsed.options}
    if "chat_template" in parsed.options and options["chat_template"] == own_template(source):
        del options["chat_template"]
    if type is not None:
        source = quantize(source, name, type)
    user_registry.add_entry(name, source, options)
    screen.note(f"{name}: added to {user_registry_path()}")


def own_template(source: str) -> str:
    """Return the chat template in the file of a model, as a Modelfile has it; "" for a model that is not downloaded."""
    with contextlib.suppress(NotDownloadedError):
        return open_gguf(find(source)).get("tokenizer.chat_template", str, "").strip("\n")
    return ""


def quantize(source: str, name: str, type: str) -> str:
    """Quantize a model into the directory of downloaded models, and return the path."""
    from cli.__main__ import dispatch

    paths.private_directory(paths.models_dir())
    out = str(paths.models_dir() / f"{name}-{type.lower()}.gguf")
    if code := dispatch(["quantize", source, out, type]):
        raise typer.Exit(code)
    return out

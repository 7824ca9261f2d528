"""The commands `localinfer cp` and `create`: further entries of the user's models.toml, as `ollama cp` and `create`."""

from pathlib import Path
from typing import Annotated

import typer

from cli.files.text_input import read_text_file
from cli.terminal import screen
from localinfer import paths
from localinfer.hub import modelfile, user_registry
from localinfer.hub.resolve import default_options, user_registry_path


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
    options = user_registry.options_over(source, parsed.options)
    if type is not None:
        source = quantize(source, name, type)
    user_registry.add_entry(name, source, options)
    screen.note(f"{name}: added to {user_registry_path()}")


def quantize(source: str, name: str, type: str) -> str:
    """Quantize a model into the directory of downloaded models, and return the path."""
    from cli.__main__ import dispatch

    paths.private_directory(paths.models_dir())
    out = str(paths.models_dir() / f"{name}-{type.lower()}.gguf")
    if code := dispatch(["quantize", source, out, type]):
        raise typer.Exit(code)
    return out

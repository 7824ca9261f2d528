"""What every command understands that takes a model: `-hf OWNER/REPO[:QUANT]` in its place, and --offline.

Both belong to the command line as a whole, so that no command has to know of them.
"""

import os
from typing import Any

import typer
from typer.core import TyperArgument, TyperOption

MODEL = "model"  # the name of the argument that -hf takes the place of
TAKES = {"MODEL", "[MODEL]", "SOURCE", "BASE", "[NAME]..."}


def options_for(parameters: list[Any]) -> list[Any]:
    """The options that go with these arguments of a command."""
    arguments = {each.name: str(each.metavar) for each in parameters if isinstance(each, TyperArgument)}
    if not TAKES & set(arguments.values()):
        return []
    offline = TyperOption(
        param_decls=["offline", "--offline"],
        is_flag=True,
        default=False,
        expose_value=False,
        callback=go_offline,
        help="Ask nobody for anything: only what is on this machine is found.",
    )
    return [repo_option(), offline] if MODEL in arguments else [offline]


def repo_option() -> TyperOption:
    return TyperOption(
        param_decls=["hf_repo", "-hf", "-hfr", "--hf-repo"],
        metavar="OWNER/REPO[:QUANT]",
        expose_value=False,
        is_eager=True,  # MODEL has to know of it
        callback=take_repo,
        help="A model of the Hugging Face hub, in the place of MODEL: hf:OWNER/REPO[:QUANT].",
    )


def take_repo(context: typer.Context, _: object, repo: str | None) -> None:
    if repo:
        context.default_map = {**(context.default_map or {}), MODEL: f"hf:{repo.removeprefix('hf:')}"}


def go_offline(_context: typer.Context, _: object, wanted: bool) -> None:
    if wanted:
        os.environ["LOCALINFER_OFFLINE"] = "1"


def require_one_model(context: typer.Context) -> None:
    """Raise UsageError for a model and -hf in one command line."""
    source = context.get_parameter_source(MODEL)
    if context.default_map and source and source.name == "COMMANDLINE":
        raise typer.BadParameter(f"{context.params[MODEL]} is a model already", param_hint="-hf")

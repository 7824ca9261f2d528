"""Options of every command that takes a model, --offline, and of every command, --debug.

`cli.app.Command` adds them, so that commands need not declare them. Flags that name a model, such as
`-hf OWNER/REPO[:QUANT]`, are handled by `cli.arguments.translation`.
"""

import os
from typing import Any

import typer
from typer.core import TyperArgument, TyperOption

MODEL_METAVARS = {"MODEL", "[MODEL]", "[MODEL]...", "MODEL...", "SOURCE", "BASE", "[NAME]..."}


def options_for(parameters: list[Any]) -> list[Any]:
    """Return the options to add to a command with these parameters."""
    if not MODEL_METAVARS & {str(each.metavar) for each in parameters if isinstance(each, TyperArgument)}:
        return []
    offline = TyperOption(
        param_decls=["offline", "--offline"],
        is_flag=True,
        default=False,
        expose_value=False,
        callback=go_offline,
        help="Disable network access; use only models on this machine.",
    )
    return [offline]


def debug_option() -> Any:
    """Return --debug as an option of a command, which error messages suggest. `__main__` looks for it itself."""
    return TyperOption(param_decls=["debug", "--debug"], is_flag=True, default=False, expose_value=False, hidden=True)


def go_offline(_context: typer.Context, _: object, wanted: bool) -> None:
    if wanted:
        os.environ["LOCALINFER_OFFLINE"] = "1"

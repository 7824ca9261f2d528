"""What every command understands that takes a model: --offline.

It belongs to the command line as a whole, so that no command has to know of it. What stands for a model itself, such as
`-hf OWNER/REPO[:QUANT]`, is for `arguments.translation` to put in its place.
"""

import os
from typing import Any

import typer
from typer.core import TyperArgument, TyperOption

TAKES = {"MODEL", "[MODEL]", "[MODEL]...", "MODEL...", "SOURCE", "BASE", "[NAME]..."}


def options_for(parameters: list[Any]) -> list[Any]:
    """The options that go with these arguments of a command."""
    if not TAKES & {str(each.metavar) for each in parameters if isinstance(each, TyperArgument)}:
        return []
    offline = TyperOption(
        param_decls=["offline", "--offline"],
        is_flag=True,
        default=False,
        expose_value=False,
        callback=go_offline,
        help="Ask nobody for anything: only what is on this machine is found.",
    )
    return [offline]


def go_offline(_context: typer.Context, _: object, wanted: bool) -> None:
    if wanted:
        os.environ["LOCALINFER_OFFLINE"] = "1"

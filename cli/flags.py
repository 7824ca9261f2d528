"""Command-line options made from `localinfer.options`: each flag is described there once, and nowhere else.

    @with_options("model", "sampling")
    def command(model: ..., given: Layer) -> None: ...

gets a parameter for every option of these sections, and hands those that the user gave to `given`, checked.
"""

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any

import typer

from cli.surprise import LEGEND, ColorBy
from localinfer.errors import UsageError
from localinfer.options import FLAGS, Flag, Layer, Section, Value, from_flags

PANELS: dict[Section, str] = {
    "model": "Model", "sampling": "Choice of tokens", "generation": "Length", "form": "Form of the answer",
    "speculation": "Guessed tokens", "draft": "Draft model", "chat": "Conversation",
}  # fmt: skip
METAVARS: dict[type, str] = {int: "N", float: "X", str: "TEXT", tuple: "TEXT"}

Command = Callable[..., None]

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="Path of a GGUF file, or a name.")]

# Options of all commands that take a text.
FileOption = Annotated[
    str | None, typer.Option("-f", "--file", metavar="FILE", help="Read the text from a file; - is stdin.")
]
EscapeOption = Annotated[
    bool | None,
    typer.Option("-e", "--escape/--no-escape", help=r"\n, \t, \" and \x41 in -p, -f and -r mean what they do in C."),
]
NoStdinOption = Annotated[bool, typer.Option("--no-stdin", help="Leave stdin alone, whatever it is.")]
QuietOption = Annotated[bool, typer.Option("-q", "--quiet", help="No statistics on stderr.")]
ColorByOption = Annotated[ColorBy | None, typer.Option("--color-by", help=LEGEND, show_choices=True)]
SpecialOption = Annotated[
    bool, typer.Option("-sp", "--special", help="Show control tokens, such as <|im_end|>, in the text that comes.")
]

JsonOption = Annotated[
    bool, typer.Option("--json", help="Write one JSON object: text, reasoning, tokens, finish_reason, timings, ...")
]


def with_options(
    *sections: Section, without: Collection[str] = (), defaults: Mapping[str, Value] | None = None
) -> Callable[[Command], Command]:
    """`without` these options; `defaults` are shown in the place of the usual ones, and are the command's to keep."""
    flags = {name: flag for name, flag in FLAGS.items() if flag.section in sections and name not in without}
    shown = {name: flag.default for name, flag in flags.items()} | dict(defaults or {})

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapper(**arguments: object) -> None:
            typed = {name: arguments.pop(name) for name in flags}
            command(**arguments, given=given(typed))

        signature = inspect.signature(command, eval_str=True)
        own = [each for each in signature.parameters.values() if each.name != "given"]
        parameters = own + [parameter(name, flag, shown[name]) for name, flag in flags.items()]
        wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {each.name: each.annotation for each in parameters}
        return wrapper

    return decorate


def parameter(name: str, flag: Flag, default: Value) -> inspect.Parameter:
    """How Typer is told of an option. Texts are taken as they are: `Flag.parse` reads and checks them."""
    kind: Any = bool if flag.kind is bool else list[str] if flag.kind is tuple else str
    annotation = Annotated[kind | None, option(name, default, rich_help_panel=PANELS[flag.section])]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def option(name: str, default: Value | None = None, **more: Any) -> Any:
    """How Typer is told of one option of `Options`; `default` is what is shown where it is not the usual one."""
    flag = FLAGS[name]
    text = described(flag, flag.default if default is None else default)
    metavar = "|".join(flag.choices) or METAVARS.get(flag.kind)
    names = [*flag.names[:-1], f"{flag.long}/{flag.off}" if flag.off else flag.long]
    return typer.Option(*names, help=text, metavar=metavar, show_default=False, **more)


def described(flag: Flag, default: Value) -> str:
    return flag.about + ("" if flag.kind in (bool, tuple) or default == "" else f" [default: {default}]")


def given(typed: dict[str, object]) -> Layer:
    """The options that were typed, in their own types. UsageError names the flag."""
    layer: dict[str, object] = {}
    for name, value in typed.items():
        if value is None or value == []:
            continue
        try:
            layer[name] = parsed(FLAGS[name], value)
        except ValueError as problem:
            raise UsageError(f"{FLAGS[name].long}: {problem}") from None
    return from_flags(layer)


def parsed(flag: Flag, value: object) -> object:
    """What was typed, once or, for a tuple, several times."""
    if isinstance(value, list):
        return tuple(text for typed in value for text in flag.parse(typed))  # type: ignore[union-attr]
    return flag.parse(value) if isinstance(value, str) else value

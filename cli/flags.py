"""Typer options generated from the flags in `localinfer.options`.

    @with_options("model", "sampling")
    def command(model: ..., given: Layer) -> None: ...

The decorated command has a parameter for every flag of these sections. The values that the user set are validated and
passed in `given`.
"""

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any

import typer

from cli.token_coloring import COLOR_BY_HELP, ColorBy
from localinfer.errors import UsageError
from localinfer.options import FLAGS, Flag, Layer, Section, Value, from_flags

PANELS: dict[Section, str] = {
    "model": "Model", "sampling": "Sampling", "generation": "Generation", "structured": "Structured output",
    "speculative": "Speculative decoding", "draft": "Draft model", "chat": "Chat",
}  # fmt: skip
METAVARS: dict[type, str] = {int: "N", float: "X", str: "TEXT", tuple: "TEXT"}

Command = Callable[..., None]

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="Path of a GGUF file, or a model name.")]

# Options of all commands that take a prompt.
FileOption = Annotated[
    str | None, typer.Option("-f", "--file", metavar="FILE", help="Read the prompt from a file (-: stdin).")
]
EscapeOption = Annotated[
    bool | None,
    typer.Option("-e", "--escape/--no-escape", help=r"Process escape sequences (\n, \t, \", \x41) in -p, -f and -r."),
]
NoStdinOption = Annotated[bool, typer.Option("--no-stdin", help="Do not read stdin.")]
QuietOption = Annotated[bool, typer.Option("-q", "--quiet", help="Do not print statistics.")]
ColorByOption = Annotated[ColorBy | None, typer.Option("--color-by", help=COLOR_BY_HELP, show_choices=True)]
SpecialOption = Annotated[
    bool, typer.Option("-sp", "--special", help="Show control tokens such as <|im_end|> in the output.")
]

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object: text, reasoning, tokens, finish_reason, timings, ...")
]


def with_options(
    *sections: Section, without: Collection[str] = (), defaults: Mapping[str, Value] | None = None
) -> Callable[[Command], Command]:
    """Return a decorator that adds the flags of `sections` to a command, without the options in `without`.

    `defaults` replace the default values in the help. The command itself must apply them.
    """
    flags = {name: flag for name, flag in FLAGS.items() if flag.section in sections and name not in without}
    shown = {name: flag.default for name, flag in flags.items()} | dict(defaults or {})

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapper(**arguments: object) -> None:
            typed = {name: arguments.pop(name) for name in flags}
            command(**arguments, given=parse_options(typed))

        signature = inspect.signature(command, eval_str=True)
        own = [each for each in signature.parameters.values() if each.name != "given"]
        parameters = own + [typer_parameter(name, flag, shown[name]) for name, flag in flags.items()]
        wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {each.name: each.annotation for each in parameters}
        return wrapper

    return decorate


def typer_parameter(name: str, flag: Flag, default: Value) -> inspect.Parameter:
    """Return the signature parameter of an option. Values stay strings: `Flag.parse` validates them."""
    kind: Any = bool if flag.value_type is bool else list[str] if flag.value_type is tuple else str
    annotation = Annotated[kind | None, typer_option(name, default, rich_help_panel=PANELS[flag.section])]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def typer_option(name: str, default: Value | None = None, **more: Any) -> Any:
    """Return the Typer option of a field of `Options`; `default` replaces the default in the help."""
    flag = FLAGS[name]
    text = help_text(flag, flag.default if default is None else default)
    metavar = "|".join(flag.choices) or METAVARS.get(flag.value_type)
    names = [*flag.names[:-1], f"{flag.long_name}/{flag.negative_name}" if flag.negative_name else flag.long_name]
    return typer.Option(*names, help=text, metavar=metavar, show_default=False, **more)


def help_text(flag: Flag, default: Value) -> str:
    return flag.help + ("" if flag.value_type in (bool, tuple) or default == "" else f" [default: {default}]")


def parse_options(typed: dict[str, object]) -> Layer:
    """Parse the options that the user set. Raises UsageError with the name of the flag for an invalid value."""
    layer: dict[str, object] = {}
    for name, value in typed.items():
        if value is None or value == []:
            continue
        try:
            layer[name] = parse_value(FLAGS[name], value)
        except ValueError as problem:
            raise UsageError(f"{FLAGS[name].long_name}: {problem}") from None
    return from_flags(layer)


def parse_value(flag: Flag, value: object) -> object:
    """Parse one value, or a list of values for an option that may be repeated."""
    if isinstance(value, list):
        return tuple(text for typed in value for text in flag.parse(typed))  # type: ignore[union-attr]
    return flag.parse(value) if isinstance(value, str) else value

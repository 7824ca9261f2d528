"""Typer options: those generated from the flags in `localinfer.options`, and groups of options that commands share.

    @with_options("model", "sampling")
    def command(model: ModelArgument, given: Layer, source: PromptSource) -> None: ...

The decorated command has a Typer parameter for every flag of these sections, whose values are validated and passed in
`given` if the user set them, and for every field of the dataclass `PromptSource`.
"""

import functools
import inspect
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Annotated, Any, get_type_hints

import typer

from cli.files.text_input import read_optional_prompt, read_prompt
from cli.terminal.token_coloring import COLOR_BY_HELP, ColorBy
from localinfer.errors import UsageError
from localinfer.escaping import printable
from localinfer.gguf.pooling import POOLINGS
from localinfer.options import FLAGS, Flag, Layer, Section, Value, from_flags

PANELS: dict[Section, str] = {
    "model": "Model", "sampling": "Sampling", "generation": "Generation", "diffusion": "Diffusion language models",
    "structured": "Structured output",
    "speculative": "Speculative decoding", "draft": "Draft model", "media": "Images and audio",
    "adapters": "Adapters", "chat": "Chat",
}  # fmt: skip
OVERRIDES = tuple(  # options that override the metadata of a model file
    name for name in FLAGS if name == "override_kv" or name.startswith(("rope_", "yarn_"))
)
METAVARS: dict[type, str] = {int: "N", float: "X", str: "TEXT", tuple: "TEXT"}

Command = Callable[..., None]

OptionalModelArgument = Annotated[
    str | None,
    typer.Argument(metavar="[MODEL]", help="Path of a GGUF file, or a model name. [default: the default model]"),
]
ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="Path of a GGUF file, or a model name.")]

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
PromptOption = Annotated[
    list[str] | None, typer.Option("-p", "--prompt", metavar="TEXT", help="The prompt; may be repeated.")
]
PoolingOption = Annotated[
    str | None,
    typer.Option(
        "--pooling", metavar="|".join(POOLINGS),
        help="Pooling of token embeddings; none: a vector for each token. [default: from the model file, or mean]",
    ),
]  # fmt: skip
QuietOption = Annotated[bool, typer.Option("-q", "--quiet", help="Do not print statistics.")]


@dataclass(frozen=True, kw_only=True)
class TextSource:
    """Where texts come from, apart from arguments: a file, stdin, or both."""

    files: Annotated[
        list[str] | None,
        typer.Option(
            "-f", "--file", metavar="FILE", help="Read texts from a file, one per line (-: stdin); may be repeated."
        ),
    ] = None
    no_stdin: Annotated[bool, typer.Option("--no-stdin", help="Do not read stdin.")] = False


@dataclass(frozen=True, kw_only=True)
class PromptSource(TextSource):
    """Where a prompt comes from, apart from arguments, and whether escape sequences are processed."""

    files: Annotated[
        list[str] | None,
        typer.Option("-f", "--file", metavar="FILE", help="Read the prompt from a file (-: stdin); may be repeated."),
    ] = None
    escape: Annotated[
        bool | None,
        typer.Option(
            "-e", "--escape/--no-escape", help=r"Process escape sequences (\n, \t, \", \x41) in -p, -f and -r."
        ),
    ] = None

    def read_prompt(self, arguments: Sequence[str]) -> str:
        """Return the arguments, the files and stdin, joined by newlines. Raises UsageError if there is no prompt."""
        return read_prompt(arguments, self.files or (), escapes=self.escape, with_stdin=not self.no_stdin)

    def read_optional_prompt(self, arguments: Sequence[str]) -> str | None:
        """Return what `read_prompt` returns, or None if there is no prompt."""
        return read_optional_prompt(arguments, self.files or (), escapes=self.escape, with_stdin=not self.no_stdin)


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """How generated text and its statistics are shown."""

    special: Annotated[
        bool, typer.Option("-sp", "--special", help="Show control tokens such as <|im_end|> in the output.")
    ] = False
    color_by: Annotated[ColorBy | None, typer.Option("--color-by", help=COLOR_BY_HELP, show_choices=True)] = None
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object: text, reasoning, tokens, finish_reason, timings, ...")
    ] = False
    quiet: QuietOption = False


def with_options(
    *sections: Section,
    names: Collection[str] = (),
    without: Collection[str] = (),
    defaults: Mapping[str, Value] | None = None,
) -> Callable[[Command], Command]:
    """Return a decorator that makes a Typer command of a function with option groups.

    Each parameter whose type is a dataclass is expanded into one parameter per field. A function with the parameter
    `given` also gets the flags of `sections` and the flags `names`, without the options in `without`. `defaults`
    replace the default values in the help. The command itself must apply them.
    """
    flags = {
        name: flag
        for name, flag in FLAGS.items()
        if (flag.section in sections or name in names) and name not in without
    }
    shown = {name: flag.default for name, flag in flags.items()} | dict(defaults or {})

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        groups: dict[str, Any] = {
            each.name: each.annotation for each in signature.parameters.values() if is_dataclass(each.annotation)
        }

        @functools.wraps(command)
        def wrapper(**arguments: Any) -> None:
            if "given" in signature.parameters:
                arguments["given"] = parse_options({name: arguments.pop(name) for name in flags})
            for name, group in groups.items():
                arguments[name] = group(**{each.name: arguments.pop(each.name) for each in fields(group)})
            command(**arguments)

        parameters = [each for parameter in signature.parameters.values() for each in expanded(parameter)]
        parameters += [typer_parameter(name, flag, shown[name]) for name, flag in flags.items()]
        wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {each.name: each.annotation for each in parameters}
        return wrapper

    return decorate


def expanded(parameter: inspect.Parameter) -> list[inspect.Parameter]:
    """Return the Typer parameters of a parameter of a command: one per field of an option group, none for `given`."""
    if parameter.name == "given":
        return []
    if not is_dataclass(parameter.annotation):
        return [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)]
    types = get_type_hints(parameter.annotation, include_extras=True)
    return [
        inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if each.default is MISSING else each.default,
            annotation=types[each.name],
        )
        for each in fields(parameter.annotation)
    ]


def typer_parameter(name: str, flag: Flag, default: Value) -> inspect.Parameter:
    """Return the signature parameter of an option. Values stay strings: `Flag.parse` validates them."""
    kind: Any = bool if flag.value_type is bool else list[str] if flag.value_type is tuple else str
    annotation = Annotated[kind | None, typer_option(name, default, rich_help_panel=PANELS[flag.section])]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def typer_option(name: str, default: Value | None = None, **more: Any) -> Any:
    """Return the Typer option of a field of `Options`; `default` replaces the default in the help."""
    flag = FLAGS[name]
    text = help_text(flag, flag.default if default is None else default)
    metavar = flag.metavar or "|".join(flag.choices) or METAVARS.get(flag.value_type)
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
    for name in ("json_schema", "grammar"):
        if (text := str(layer.get(name, ""))) and os.path.isfile(text):  # noqa: PTH113  # also of no path
            flag = FLAGS[name].long_name
            raise UsageError(f"{flag}: {printable(text, 200)} is a file; {flag}-file reads it")
    return from_flags(layer)


def parse_value(flag: Flag, value: object) -> object:
    """Parse one value, or a list of values for an option that may be repeated."""
    if isinstance(value, list):
        return tuple(text for typed in value for text in flag.parse(typed))  # type: ignore[union-attr]
    return flag.parse(value) if isinstance(value, str) else value

"""llama-server's --models-preset: an INI file with a section of options for each model.

    [*]                                     options of all models
    ctx-size = 8192

    [small]                                 the name for clients
    model = models/small.gguf               or: hf = OWNER/REPO:QUANT
    temp = 0.2

A section becomes a command line of `localinfer serve`. A key is a flag without its dashes, or the name of llama.cpp's
environment variable for it.
"""

import configparser
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import typer

from cli.arguments import compatibility
from cli.arguments.flags import parse_options
from cli.arguments.translation import CommandSpec, ignored_flags
from cli.files.text_input import read_text_file
from localinfer.errors import LocalInferError, UsageError
from localinfer.escaping import printable
from localinfer.options import FLAGS, Layer

if TYPE_CHECKING:
    from cli.app import Command

COMMON = "*"
VARIABLE = "LLAMA_ARG_"
IGNORED_KEYS = {"load-on-startup", "stop-timeout", "version"}  # how llama-server starts and stops its processes
TRUE, FALSE = {"1", "true", "on", "yes", "enabled"}, {"0", "false", "off", "no", "disabled"}


class Preset(NamedTuple):
    """A section: the name for clients, the model, and its options."""

    name: str
    model: str
    options: Layer


def read_presets(path: Path, context: typer.Context) -> list[Preset]:
    """Return the presets of a file. The context is that of `serve`. Raises UsageError with the invalid section."""
    file = f"--models-preset: {printable(str(path))}"
    parser = configparser.ConfigParser(
        interpolation=None, delimiters="=", default_section=COMMON, comment_prefixes=(";", "#"), strict=False
    )
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # as documented; keys keep their case
    try:
        parser.read_string(f"[version]\n{read_text_file(str(path))}")
    except configparser.Error as error:
        line = getattr(error, "lineno", None) or next(iter(getattr(error, "errors", [])), (1,))[0]
        raise UsageError(f"{file}: line {line - 1}: must be [NAME] or KEY = VALUE") from None
    parser.remove_section("version")
    if not parser.sections():
        raise UsageError(f"{file}: has no section for a model")
    command = cast("Command", context.command)
    spec = command.spec(context)
    return [
        parse_preset(name, own_options_last(parser, name), command, spec, f"{file}: [{printable(name, 80)}]")
        for name in parser.sections()
    ]


def own_options_last(parser: configparser.ConfigParser, name: str) -> list[tuple[str, str]]:
    """Return the options of all models, then those of a section: the last one of two names for a flag wins."""
    common = parser.defaults()
    own = [(key, value) for key, value in parser[name].items() if common.get(key) != value]
    return [*common.items(), *own]


def parse_preset(
    name: str, options: Iterable[tuple[str, str]], command: "Command", spec: CommandSpec, where: str
) -> Preset:
    """Parse a section as a command line."""
    try:
        with command.make_context("serve", [*words(options, spec)]) as parsed:
            models = parsed.params["models"]
            typed = {flag: value for flag, value in parsed.params.items() if flag in FLAGS and value != ()}
            layer = parse_options(typed)
    except typer.TyperException as error:
        raise UsageError(f"{where}: {error.format_message()}") from None
    except LocalInferError as error:
        raise type(error)(f"{where}: {error}") from None
    is_repository = "/" in name and not Path(name).exists()
    return Preset(name, models[0] if models else f"hf:{name}" if is_repository else name, layer)


def words(options: Iterable[tuple[str, str]], spec: CommandSpec) -> Iterator[str]:
    """Yield the words of a command line with these options."""
    for key, value in options:
        if key in IGNORED_KEYS:
            continue
        flag = flag_of(key, spec)
        if takes_value(flag, spec):
            yield from (flag, value)
        elif value.lower() in TRUE:
            yield flag
        elif value.lower() in FALSE:
            yield f"--no-{flag.lstrip('-')}"
        else:
            raise UsageError(f"{printable(key, 80)}: must be true or false, not {printable(value, 80)}")


def flag_of(key: str, spec: CommandSpec) -> str:
    """Return the flag that a key stands for."""
    name = key.removeprefix(VARIABLE).lower().replace("_", "-") if key.startswith(VARIABLE) else key
    return f"-{name}" if not is_known(f"--{name}", spec) and is_known(f"-{name}", spec) else f"--{name}"


def is_known(flag: str, spec: CommandSpec) -> bool:
    tables = (
        spec.options, compatibility.EQUIVALENTS, compatibility.MODEL_FLAGS, compatibility.PREFIXED,
        compatibility.HUB_FILE_FLAGS, compatibility.BY_VALUE, ignored_flags(spec.name),
    )  # fmt: skip
    return any(flag in table for table in tables)


def takes_value(flag: str, spec: CommandSpec) -> bool:
    if flag in spec.options:
        return spec.options[flag][1] > 0
    if flag in compatibility.EQUIVALENTS:
        target, *value = compatibility.EQUIVALENTS[flag]
        return not value and takes_value(target, spec)
    return flag not in (ignored := ignored_flags(spec.name)) or ignored[flag][0] != 0

"""llama-server's --models-preset: an INI file with a section of options for each model.

    [*]                                     options of all models
    ctx-size = 8192

    [small]                                 the name for clients
    model = models/small.gguf               or: hf = OWNER/REPO:QUANT
    temp = 0.2

A section becomes a command line of `localinfer serve`. A key is a flag with or without its dashes, or the name of
llama.cpp's environment variable for it. Flags of the server, such as port, have no effect.
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
LOAD_ON_STARTUP, STOP_TIMEOUT, HIDE_SOURCE = PRESET_KEYS = ("load-on-startup", "stop-timeout", "dedup-cache-models")
VERSION = "version"
TRUE, FALSE = {"1", "true", "on", "yes", "enabled"}, {"0", "false", "off", "no", "disabled"}


class Preset(NamedTuple):
    """A section: the name for clients, the model ("" if the section names none), and its options.

    A time is None, as are tags and aliases, if the section does not set it.
    """

    name: str
    model: str = ""
    options: Layer = {}  # noqa: RUF012 (never changed)
    draft: str = ""
    aliases: tuple[str, ...] | None = None
    tags: tuple[str, ...] | None = None
    sleep_idle_seconds: float | None = None
    stop_timeout: float | None = None
    load_on_startup: bool = False
    hides_source: bool = False

    @property
    def source(self) -> str:
        """The model, which is the section's name if the section names none: a repository of the hub, or a path."""
        is_repository = "/" in self.name and not Path(self.name).exists()
        return self.model or (f"hf:{self.name}" if is_repository else self.name)


class PresetFile(NamedTuple):
    """The presets of a file by name, and the options of all other models of the server."""

    common: Preset
    presets: dict[str, Preset]


NO_PRESETS = PresetFile(Preset(COMMON), {})


def read_presets(path: Path, context: typer.Context, file: str = "") -> PresetFile:
    """Return the presets of a file. The context is that of `serve`. Raises UsageError with the invalid section.

    `file` is what messages call the file.
    """
    file = file or f"--models-preset: {printable(str(path))}"
    parser = read_ini(path, file)
    command = cast("Command", context.command)
    spec = command.spec(context)
    presets = [
        parse_preset(name, own_options_last(parser, name), command, spec, f"{file}: [{printable(name, 80)}]")
        for name in parser.sections()
    ]
    common = parse_preset(COMMON, parser.defaults().items(), command, spec, f"{file}: [{COMMON}]")
    return PresetFile(common._replace(model=""), {each.name: each for each in presets})


def read_ini(path: Path, file: str) -> configparser.ConfigParser:
    """Return the sections of a file. Raises UsageError."""
    parser = configparser.ConfigParser(
        interpolation=None, delimiters="=", default_section=COMMON, comment_prefixes=(";", "#"), strict=False
    )
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # as documented; keys keep their case
    try:
        parser.read_string(f"[{VERSION}]\n{read_text_file(str(path))}")
    except configparser.Error as error:
        line = getattr(error, "lineno", None) or next(iter(getattr(error, "errors", [])), (1,))[0]
        raise UsageError(f"{file}: line {line - 1}: must be [NAME] or KEY = VALUE") from None
    parser.remove_section(VERSION)
    if not parser.sections():
        raise UsageError(f"{file}: has no section for a model")
    return parser


def own_options_last(parser: configparser.ConfigParser, name: str) -> list[tuple[str, str]]:
    """Return the options of all models, then those of a section: the last one of two names for a flag wins."""
    common = parser.defaults()
    own = [(key, value) for key, value in parser[name].items() if common.get(key) != value]
    return [*common.items(), *own]


def parse_preset(
    name: str, options: Iterable[tuple[str, str]], command: "Command", spec: CommandSpec, where: str
) -> Preset:
    """Parse a section as a command line."""
    given = {key.lstrip("-"): value for key, value in options}
    special = {key: given.pop(key) for key in PRESET_KEYS if key in given}
    try:
        with command.make_context("serve", [*words(given.items(), spec)]) as parsed:
            params = parsed.params
            typed = {flag: value for flag, value in params.items() if flag in FLAGS and value != ()}
            layer = parse_options(typed)
        return Preset(
            name, (params["models"] or ("",))[0], layer, str(layer.get("spec_draft_model", "")),
            None if params["alias"] is None else names(params["alias"]), names(params["tags"]) or None,
            None if params["sleep_idle_seconds"] is None else max(0.0, params["sleep_idle_seconds"]),
            parse_seconds(STOP_TIMEOUT, special.get(STOP_TIMEOUT)),
            parse_switch(LOAD_ON_STARTUP, special.get(LOAD_ON_STARTUP, "0")),
            parse_switch(HIDE_SOURCE, special.get(HIDE_SOURCE, "0")),
        )  # fmt: skip
    except typer.TyperException as error:
        raise UsageError(f"{where}: {error.format_message()}") from None
    except LocalInferError as error:
        raise type(error)(f"{where}: {error}") from None


def parse_switch(key: str, value: str) -> bool:
    """Return a value that is true or false. Raises UsageError."""
    if value.lower() not in TRUE | FALSE:
        raise UsageError(f"{printable(key, 80)}: must be true or false, not {printable(value, 80)}")
    return value.lower() in TRUE


def parse_seconds(key: str, value: str | None) -> float | None:
    """Return a number of seconds. Raises UsageError."""
    try:
        seconds = None if value is None else float(value)
    except ValueError:
        seconds = -1
    if seconds is not None and not 0 <= seconds < 1e9:
        raise UsageError(f"{key}: must be a number of seconds, not {printable(str(value), 80)}")
    return seconds


def names(text: str) -> tuple[str, ...]:
    """Return comma-separated names, sorted, without empty ones."""
    return tuple(sorted(filter(None, (each.strip() for each in text.split(",")))))


def words(options: Iterable[tuple[str, str]], spec: CommandSpec) -> Iterator[str]:
    """Yield the words of a command line with these options."""
    for key, value in options:
        if key == VERSION:
            continue
        flag = flag_of(key, spec)
        if takes_value(flag, spec):
            yield from (flag, value)
        else:
            yield flag if parse_switch(key, value) else negated(flag)


def negated(flag: str) -> str:
    """Return the flag that switches off what this one switches on, or the other way round."""
    return f"--{flag.removeprefix('--no-')}" if flag.startswith("--no-") else f"--no-{flag.lstrip('-')}"


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

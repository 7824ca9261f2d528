"""The command `localinfer config`: show all settings, their values and sources."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from cli.arguments.flags import PANELS, OptionalModelArgument, with_options
from cli.arguments.suggestions import did_you_mean
from cli.models.loading import default_model
from cli.terminal import screen
from cli.terminal.tables import table
from localinfer.machine.resources import default_threads
from localinfer.options import FLAGS, METADATA_KEYS, Flag, Layer, Value, format_value, from_environment, from_metadata

OTHER_VARIABLES = {  # environment variables that do not set an option
    "LOCALINFER_CACHE_DIR": "directory of models, compiled kernels and evaluated prompts",
    "LOCALINFER_CONFIG_DIR": "directory of models.toml",
    "LOCALINFER_DATA_DIR": "directory of chat sessions and input history",
    "LOCALINFER_DEBUG": "--debug for all commands",
    "LOCALINFER_MCP": "file with the MCP servers of interactive chats",
    "NO_COLOR": "disable colours",
    "NUMBA_CPU_NAME": "CPU to compile kernels for",
}

AUTOMATIC: dict[str, Callable[[], str]] = {  # what the value 0 of an option means
    "--threads": lambda: f"automatic: {default_threads()}",
    "--threads-batch": lambda: "same as --threads",
    "--spec-draft-threads": lambda: "same as --threads",
    "--spec-draft-threads-batch": lambda: "same as --spec-draft-threads",
    "--ctx-size": lambda: "automatic: as in training, as far as memory allows",
    "--ctx-size-draft": lambda: "same as the model",
}


class Setting(NamedTuple):
    """The value of an option, its source (flag, environment, ...) and its name in that source."""

    value: Value
    source: str
    name: str = ""


@with_options(*PANELS)
def config_command(
    given: Layer,
    model: OptionalModelArgument = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show all settings, their values and sources.

    Precedence, highest first: command-line flag, environment variable, models.toml, the model file's metadata,
    default. The flags are those of `chat` and `generate`.

    \b
    Examples:
      localinfer config
      LOCALINFER_THREADS=4 localinfer config smollm2 --temp 0.2
      localinfer config model.gguf --json
    """
    name = model or default_model()
    settings = resolve_settings(name, given)
    for variable in unknown_variables(os.environ):
        screen.warn(variable)
    if as_json:
        screen.write(json.dumps(as_object(name, settings), indent=1) + "\n")
    else:
        screen.write("\n".join(as_text(name, settings)) + "\n")


def resolve_settings(model: str, given: Layer) -> dict[str, Setting]:
    """Return the value and source of every option for a run of this model."""
    from localinfer.hub import resolve

    try:
        path = resolve.find(model)
    except resolve.NotDownloadedError:
        path = None
    keys = {name: key for key, name in METADATA_KEYS.items()}
    layers: list[tuple[str, Layer, Callable[[str], str]]] = [  # lowest precedence first
        ("file", file_options(path) if path else {}, lambda name: f"{path}: {keys[name]}"),
        ("models.toml", resolve.default_options(model), lambda name: f"models.toml: {model}.options.{name}"),
        ("environment", from_environment(os.environ), lambda name: FLAGS[name].environment_variable),
        ("flag", given, lambda name: FLAGS[name].long_name),
    ]
    settings = {name: Setting(flag.default, "default") for name, flag in FLAGS.items()}
    for source, layer, called in layers:
        settings |= {name: Setting(value, source, called(name)) for name, value in layer.items()}
    return settings


def file_options(path: Path) -> Layer:
    from localinfer.gguf.reader import open_gguf

    f = open_gguf(path)
    return from_metadata(f.metadata, f.path)


def unknown_variables(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a message for each variable LOCALINFER_* that is unknown."""
    known = [*(flag.environment_variable for flag in FLAGS.values()), *OTHER_VARIABLES]
    for name in environ:
        if name.startswith("LOCALINFER_") and name not in known:
            yield f"{name}: unknown environment variable{did_you_mean(name, known)}"


def locations() -> dict[str, str]:
    """Return the directories and files that localinfer uses, by name."""
    from localinfer import paths
    from localinfer.hub import resolve

    return {
        "cache": str(paths.cache_root()),
        "data": str(paths.data_dir()),
        "models.toml": str(resolve.user_registry_path()),
    }


def as_text(model: str, settings: Mapping[str, Setting]) -> Iterator[str]:
    yield f"{screen.one_line(model)}: settings of its next run"
    for section, title in PANELS.items():
        rows = [setting_row(flag, settings[name]) for name, flag in FLAGS.items() if flag.section == section]
        yield from table(title, "<<<", rows)
    variables = [(name, screen.one_line(os.environ.get(name, "")) or "-", use) for name, use in OTHER_VARIABLES.items()]
    yield from table("Other environment variables", "<<<", variables)
    yield from table("Locations", "<<", locations().items())


def setting_row(flag: Flag, setting: Setting) -> tuple[str, str, str]:
    value = (
        ", ".join(map(format_value, setting.value)) if isinstance(setting.value, tuple) else format_value(setting.value)
    )
    if setting.value == 0 and flag.long_name in AUTOMATIC:
        value = f"0 ({AUTOMATIC[flag.long_name]()})"
    return flag.long_name, "-" if setting.value in ("", ()) else value, screen.one_line(setting.name) or setting.source


def as_object(model: str, settings: Mapping[str, Setting]) -> dict[str, object]:
    options = {
        name: {
            **settings[name]._asdict(),
            "flag": flag.long_name,
            "variable": flag.environment_variable,
            "default": flag.default,
        }
        for name, flag in FLAGS.items()
    }
    variables = {name: os.environ.get(name) for name in OTHER_VARIABLES}
    return {"model": model, "options": options, "variables": variables, "locations": locations()}

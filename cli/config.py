"""`localinfer config`: every setting, its value, and where that comes from."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from cli import screen
from cli.arguments.nearest import did_you_mean
from cli.flags import PANELS, with_options
from cli.loading import default_model
from cli.tables import table
from localinfer.options import FLAGS, SAMPLING_KEYS, Flag, Layer, Value, from_environment, from_metadata, shown

OTHER_VARIABLES = {  # which are no options, and what they are for
    "LOCALINFER_CACHE_DIR": "where models and compiled kernels are kept",
    "LOCALINFER_CONFIG_DIR": "where models.toml is",
    "LOCALINFER_DATA_DIR": "where sessions and the history of chats are kept",
    "LOCALINFER_DEBUG": "--debug for all commands",
    "NO_COLOR": "no colours",
    "NUMBA_CPU_NAME": "the CPU that kernels are compiled for",
}


class Setting(NamedTuple):
    """A value, the kind of place that it comes from, and its name there."""

    value: Value
    source: str
    name: str = ""


@with_options(*PANELS)
def config_command(
    given: Layer,
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="Path of a GGUF file, or a name; none: the default one.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write one JSON object.")] = False,
) -> None:
    """Show every setting, its value, and where that comes from.

    A flag is stronger than the environment, that than what models.toml says of the model, and that than what the file
    of the model proposes; then come the defaults. Flags are those of `chat` and `generate`, to show what they do.

    \b
      localinfer config
      LOCALINFER_THREADS=4 localinfer config smollm2 --temp 0.2
      localinfer config model.gguf --json
    """
    name = model or default_model()
    settings = found(name, given)
    for variable in unknown_variables(os.environ):
        screen.warn(variable)
    if as_json:
        screen.write(json.dumps(as_object(name, settings), indent=1) + "\n")
    else:
        screen.write("\n".join(as_text(name, settings)) + "\n")


def found(model: str, given: Layer) -> dict[str, Setting]:
    """Every option, as a run of this model would have it."""
    from localinfer.models import registry

    entry = registry.named(model)
    path = registry.existing(Path(model)) if entry is None else entry.file if entry.present else None
    keys = {name: key for key, name in SAMPLING_KEYS.items()}
    layers: list[tuple[str, Layer, Callable[[str], str]]] = [  # the weakest first
        ("file", of_file(path) if path else {}, lambda name: f"{path}: {keys[name]}"),
        ("models.toml", entry.options if entry else {}, lambda name: f"models.toml: {model}.options.{name}"),
        ("environment", from_environment(os.environ), lambda name: FLAGS[name].variable),
        ("flag", given, lambda name: FLAGS[name].long),
    ]
    settings = {name: Setting(flag.default, "default") for name, flag in FLAGS.items()}
    for source, layer, called in layers:
        settings |= {name: Setting(value, source, called(name)) for name, value in layer.items()}
    return settings


def of_file(path: Path) -> Layer:
    from localinfer.files.gguf import open_gguf

    f = open_gguf(path)
    return from_metadata(f.metadata, f.path)


def unknown_variables(environ: Mapping[str, str]) -> Iterator[str]:
    """What there is to say of variables that look as if they were ours."""
    known = [*(flag.variable for flag in FLAGS.values()), *OTHER_VARIABLES]
    for name in environ:
        if name.startswith("LOCALINFER_") and name not in known:
            yield f"{name} means nothing here{did_you_mean(name, known)}"


def places() -> dict[str, str]:
    """Directories and files."""
    from localinfer import paths
    from localinfer.models import registry

    return {"cache": str(paths.cache_root()), "data": str(paths.data_dir()), "models.toml": str(registry.user_toml())}


def as_text(model: str, settings: Mapping[str, Setting]) -> Iterator[str]:
    yield f"{screen.one_line(model)}: what its next run would have"
    for section, title in PANELS.items():
        rows = [row(flag, settings[name]) for name, flag in FLAGS.items() if flag.section == section]
        yield from table(title, "<<<", rows)
    variables = [(name, screen.one_line(os.environ.get(name, "")) or "-", use) for name, use in OTHER_VARIABLES.items()]
    yield from table("Other variables of the environment", "<<<", variables)
    yield from table("Places", "<<", places().items())


def row(flag: Flag, setting: Setting) -> tuple[str, str, str]:
    value = ", ".join(map(shown, setting.value)) if isinstance(setting.value, tuple) else shown(setting.value)
    return flag.long, "-" if setting.value in ("", ()) else value, screen.one_line(setting.name) or setting.source


def as_object(model: str, settings: Mapping[str, Setting]) -> dict[str, object]:
    options = {
        name: {**settings[name]._asdict(), "flag": flag.long, "variable": flag.variable, "default": flag.default}
        for name, flag in FLAGS.items()
    }
    variables = {name: os.environ.get(name) for name in OTHER_VARIABLES}
    return {"model": model, "options": options, "variables": variables, "places": places()}

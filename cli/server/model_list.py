"""What `localinfer serve` serves: its arguments, directories, the sections of a file of presets, and all models on this
machine.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from cli.models.loading import model_loader
from cli.server.presets import NO_PRESETS, PresetFile
from localinfer.errors import LocalInferError, UsageError
from localinfer.escaping import printable
from localinfer.hub import resolve
from localinfer.options import FLAGS, Layer, Value, combine, from_environment
from localinfer.server.models.catalog import (
    HUB,
    Catalog,
    Origin,
    ServedModel,
    default_name,
    local_model_names,
    model_file,
    require_unique_names,
)
from localinfer.server.models.models_directory import FoundModel, find_models

DEFAULT_UBATCH_SIZE = 128  # tokens; a disconnected client is noticed after each micro-batch
DEFAULT_PARALLEL = 4  # sequences
DEFAULTS: Layer = {"ubatch_size": DEFAULT_UBATCH_SIZE, "parallel": DEFAULT_PARALLEL}


@dataclass(kw_only=True)
class ModelList:
    """The models of a server. Calling it returns them as they are now, except for the presets, which `reread` reads.

    `sources` are names and paths, `directories` contain models. With `serves_all`, the models on this machine belong
    to the list, too. `given` are the options of the command line, `tags` those of models without their own. The first
    of the `aliases` of a single source is its name.
    """

    sources: Sequence[str]
    directories: Sequence[Path]
    given: Layer
    read_presets: Callable[[], PresetFile]
    aliases: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    serves_all: bool = False
    presets: PresetFile = field(default=NO_PRESETS, init=False)

    def __post_init__(self) -> None:
        self.reread()

    def reread(self) -> None:
        """Read the file of presets. Raises UsageError."""
        self.presets = self.read_presets()

    def __call__(self) -> list[ServedModel]:
        return [*self.configured(), *(self.models_on_this_machine() if self.serves_all else ())]

    def catalog(self) -> Catalog:
        """Return the catalog of a server. Raises UsageError if there is no model, or if two have the same name."""
        models = self.configured()
        for directory in self.directories:
            if not find_models(directory):
                raise UsageError(f"{printable(str(directory))}: contains no GGUF file")
        require_unique_names(models)
        is_fixed = not self.serves_all and not self.directories and not self.presets.presets
        default = "" if models else resolve.model_registry().default
        return Catalog(self, serves_all=self.serves_all, is_fixed=is_fixed, reread=self.reread, default=default)

    def configured(self) -> list[ServedModel]:
        """Return the models that the command line and the presets name."""
        given = [self.served(self.aliases[0] if self.aliases else default_name(each), each, "preset", self.aliases)
                 for each in self.sources]  # fmt: skip
        found = [
            self.served(each.name, str(each.path), "models_dir")
            for directory in self.directories
            for each in models_of(directory)
        ]
        known = {each.name for each in (*given, *found)}
        of_machine = set(local_model_names()) if self.serves_all and self.presets.presets else set[str]()
        presets = [
            self.served(each.name, each.source, "preset")
            for each in self.presets.presets.values()
            if each.model or not {each.name, HUB + each.name} & (known | of_machine)
        ]
        named = {each.name for each in presets}
        return [*given, *presets, *(each for each in found if each.name not in named)]

    def models_on_this_machine(self) -> Iterator[ServedModel]:
        """Yield the downloaded models. Those that a preset stands for are hidden if it says so."""
        hidden = set(self.hidden_files())
        for name in local_model_names():
            served = self.served(name, name, "cache")
            is_hidden = bool(hidden) and model_file(served) in hidden
            yield replace(served, is_hidden=is_hidden)

    def hidden_files(self) -> Iterator[Path]:
        """Yield the files of presets that hide their own models, and their draft models, in the list."""
        for preset in self.presets.presets.values():
            if preset.hides_source or self.presets.common.hides_source:
                for source in filter(None, (preset.source, preset.draft)):
                    if file := model_file(ServedModel(source, source)):
                        yield file

    def served(self, name: str, source: str, origin: Origin, aliases: tuple[str, ...] = ()) -> ServedModel:
        """Return a model with the options of its preset, or else those of all models."""
        common = self.presets.common
        preset = self.presets.presets.get(name) or self.presets.presets.get(name.removeprefix(HUB)) or common
        options = with_defaults(self.given, preset.options)
        aliases = aliases or (preset.aliases or () if preset is not common else ())
        return ServedModel(
            name, source, aliases, self.tags if preset.tags is None else preset.tags, origin,
            arguments=(source, *option_words(combine(self.given, preset.options))), options=options,
            sleep_idle_seconds=preset.sleep_idle_seconds, stop_timeout=preset.stop_timeout,
            load_on_startup=preset.load_on_startup, load=model_loader(options), required_bytes=required_bytes(options),
        )  # fmt: skip

    @property
    def n_slots(self) -> int:
        """The number of slots that the server needs."""
        layers: list[Layer] = [{}, *(each.options for each in self.presets.presets.values())]
        return max(int(str(with_defaults(self.given, each)["parallel"])) for each in layers)


def models_of(directory: Path) -> list[FoundModel]:
    """Return the models of a directory; none while it is missing."""
    try:
        return find_models(directory)
    except LocalInferError:
        return []


def with_defaults(given: Layer, preset: Layer | None = None) -> Layer:
    """Return the options of a model. Precedence, highest first: flags, the preset, environment variables, defaults."""
    return combine(given, preset or {}, from_environment(os.environ), DEFAULTS)


def required_bytes(options: Layer) -> Callable[[str], int]:
    """Return a function that computes the memory of a model with these options."""

    def compute(source: str) -> int:
        from localinfer.server.models.model_memory import required_bytes

        return required_bytes(source, options)

    return compute


def option_words(options: Layer) -> Iterator[str]:
    """Yield the words of a command line that set these options."""
    for name, value in options.items():
        flag = FLAGS[name]
        if isinstance(value, bool):
            yield flag.long_name if value else flag.negative_name or f"{flag.long_name}=false"
        else:
            for each in value if isinstance(value, tuple) else (value,):
                yield from (flag.long_name, word(each))


def word(value: Value | str) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)

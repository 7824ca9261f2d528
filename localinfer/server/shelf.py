"""The models that can be asked for, by name, and those of them that are in memory."""

import gc
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from localinfer.errors import LocalInferError, NotEnoughMemory
from localinfer.models import registry
from localinfer.server.problems import Problem
from localinfer.text import printable

if TYPE_CHECKING:
    from localinfer.model import Model

Load = Callable[[str], "Model"]


@dataclass(frozen=True, slots=True)
class Offered:
    """A model's `name` for clients, and the word with which it is loaded."""

    name: str
    word: str


class Shelf:
    """The models of these `words`, names or paths; without any, all that are on this machine.

    At most `most` of them are in memory, fewer where they do not fit together: the one that was used least recently
    makes room. Its methods that load are for one thread at a time.
    """

    def __init__(self, words: Sequence[str], load: Load, most: int = 1, alias: str | None = None) -> None:
        offered = [Offered(alias or name_of(word), word) for word in words]
        self._given = {each.name: each for each in offered}
        self._load = load
        self._most = most
        self._lock = threading.Lock()
        self.loaded: dict[str, Model] = {}  # the one that was used last at the end
        self.used_at: dict[str, float] = {}  # seconds of the system's clock

    def offered(self) -> list[Offered]:
        return list(self._given.values()) or [Offered(name, name) for name in names_here()]

    def resolved(self, wanted: str | None) -> Offered:
        """What a request means by its model. Where there is only one, it is that one, whatever it is called."""
        if len(self._given) == 1 or (self._given and not wanted):
            return next(iter(self._given.values()))
        if not wanted:
            wanted = next(reversed(self.loaded), None) or registry.catalogue().default
        offered = {each.name: each for each in self.offered()}
        for name in (wanted, wanted.removesuffix(":latest")):
            if name in offered:
                return offered[name]
        raise Problem(404, f"model: there is no {printable(wanted, 100)} here", "model", "model_not_found")

    def model(self, offered: Offered) -> "Model":
        """The model, loaded if it is not yet. Raises as `localinfer.load`."""
        with self._lock:
            model = self.loaded.pop(offered.name, None) or self._loaded(offered)
            self.loaded[offered.name] = model
            self.used_at[offered.name] = time.time()
            return model

    def unload(self, name: str) -> None:
        with self._lock:
            self._let_go(name)

    def close(self) -> None:
        for name in list(self.loaded):
            self.unload(name)

    def _loaded(self, offered: Offered) -> "Model":
        while len(self.loaded) >= self._most:
            self._let_go(next(iter(self.loaded)))
        while True:
            try:
                return self._load(offered.word)
            except NotEnoughMemory:
                if not self.loaded:
                    raise
                self._let_go(next(iter(self.loaded)))

    def _let_go(self, name: str) -> None:
        """End a model, if it is loaded, and have its memory back at once: its parts know each other, so that it would
        only come back at some time."""
        if model := self.loaded.pop(name, None):
            model.close()
            del model
            gc.collect()


def name_of(word: str) -> str:
    """A file is called by its name without the ending."""
    return Path(word).name.removesuffix(".gguf") if registry.placed(word) is None else word


def names_here() -> list[str]:
    """All models that are on this machine as a whole, those of models.toml first."""
    names = list(registry.listed_names())
    with suppress(LocalInferError):
        names += [each.name for _, models in registry.listed() for each in models if each.share == 1]
    return list(dict.fromkeys(names))


def file_of(offered: Offered) -> Path | None:
    """The model's first file, where it is here."""
    try:
        return registry.find(offered.word)
    except LocalInferError:
        return None

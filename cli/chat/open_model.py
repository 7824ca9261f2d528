"""The model of a chat, which another model, or the same one with other options, can replace."""

import contextlib
import threading
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING

from cli.models.loading import find_or_fetch, open_model
from cli.terminal import screen
from localinfer.errors import UnsupportedError
from localinfer.options import Layer

if TYPE_CHECKING:
    from localinfer import Model


class EmbeddingModelError(UnsupportedError):
    """Raised for a model that computes embeddings and cannot chat."""


class OpenModel:
    """A model that is open for a chat, and the options that were given for it.

    For an interactive chat, the line editor is imported in the background while the model is loaded.
    """

    def __init__(self, name: str, given: Layer, *, interactive: bool) -> None:
        self.name, self.given = name, given
        self._interactive = interactive
        if interactive and screen.is_redrawable():
            threading.Thread(target=import_module, args=["cli.chat.input.editor"], daemon=True).start()
        self.model = self._open(name, given)

    def __enter__(self) -> "OpenModel":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.model.__exit__(kind, error, traceback)

    def replace(self, name: str, changes: Layer) -> "Model":
        """Close the model, open another one and return it. If that fails, the model stays as it was.

        Both would not fit in memory on many machines.
        """
        given: Layer = {**self.given, **changes}
        find_or_fetch(name, screen.Status())
        self.model.__exit__(None, None, None)
        try:
            self.model = self._open(name, given)
        except BaseException:
            self.model = self._open(self.name, self.given)
            raise
        self.name, self.given = name, given
        return self.model

    def _open(self, name: str, given: Layer) -> "Model":
        """Open a model. Raises an error if it has no chat template."""
        with screen.without_echo() if self._interactive else contextlib.nullcontext():
            model = open_model(name, given, screen.Status())
            try:
                require_generation(name, model)
                model.require_chat_template()
            except BaseException:
                model.close()
                raise
        return model


def require_generation(name: str, model: "Model") -> None:
    """Raise EmbeddingModelError for a model that computes embeddings."""
    architecture = model.metadata["general.architecture"]
    is_causal = model.engine.compiled_graph.model_graph.context.causal
    if f"{architecture}.pooling_type" in model.metadata or not (is_causal or model.is_diffusion):
        raise EmbeddingModelError(f"{name}: computes embeddings and cannot chat; use `localinfer embed`")

"""The base class of `Model`: its components, and what can be read without evaluating anything."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from localinfer.errors import UsageError
from localinfer.generation.session import GenerationSession
from localinfer.gguf.reader import GGUF, Tensor, Value
from localinfer.graph.properties.model_properties import trained_context
from localinfer.model.shared_resources import SharedResources
from localinfer.options import FLAGS, Options, from_keywords, merge
from localinfer.runtime.sequence_engine import SequenceEngine
from localinfer.tokenizer import Tokenizer

if TYPE_CHECKING:  # most prompts are text only
    from localinfer.generation.diffusion.denoiser import DiffusionStep
    from localinfer.model.media_encoder import MediaInfo
    from localinfer.multimodal.projector import Projector


class ModelBase:
    """The file, the tokenizer, the engine and the generation session of a model. `options` are the defaults of every
    run.
    """

    def __init__(
        self,
        f: GGUF,
        options: Options,
        tokenizer: Tokenizer,
        engine: SequenceEngine,
        session: GenerationSession,
        resources: SharedResources,
    ) -> None:
        self.file, self.options, self.tokenizer, self.engine = f, options, tokenizer, engine
        self._session, self._resources = session, resources

    @property
    def is_diffusion(self) -> bool:
        """Whether the model is a diffusion language model, which unmasks the tokens of a text in any order."""
        return self.engine.context.diffusion

    @property
    def on_diffusion_step(self) -> "Callable[[DiffusionStep], None] | None":
        """The function that is called with each step of a diffusion language model, if there is one."""
        return self._session.on_diffusion_step

    @on_diffusion_step.setter
    def on_diffusion_step(self, function: "Callable[[DiffusionStep], None] | None") -> None:
        self._session.on_diffusion_step = function

    def __repr__(self) -> str:
        """Return the file, the architecture, the number of parameters and the size of the context."""
        n_parameters = sum(math.prod(tensor.shape) for tensor in self.tensors.values())
        architecture = self.metadata.get("general.architecture", "?")
        size = f"{n_parameters / 1e9:.2f}B" if n_parameters >= 1e9 else f"{n_parameters / 1e6:.0f}M"
        return f"Model({self.file.path.name!r}, {architecture}, {size} parameters, n_ctx={self.n_ctx})"

    @property
    def parallel(self) -> int:
        """The number of slots for concurrent runs."""
        return self.engine.graph.sequences

    @property
    def metadata(self) -> Mapping[str, Value]:
        """The metadata of the GGUF file, by key."""
        return self.file.metadata

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The tensors of the GGUF file, by name."""
        return self.file.tensors

    @property
    def n_ctx(self) -> int:
        """The size of the context in tokens."""
        return self.engine.n_ctx

    @property
    def n_ctx_train(self) -> int:
        """The context length in tokens that the model was trained with."""
        return trained_context(self.engine.compiled_graph.model_graph.hparams, self.n_ctx)

    @property
    def n_vocab(self) -> int:
        """The number of tokens in the vocabulary."""
        return self.engine.n_vocab

    @property
    def media_kinds(self) -> frozenset[str]:
        """What the model reads beside text: "image", "audio", both or nothing."""
        return self._resources.media_encoder().kinds

    @property
    def projector(self) -> "Projector":
        """The projector, with which the model reads images, sounds or videos; loaded at first use.

        Raises UnsupportedError if the model has none.
        """
        return self._resources.media_encoder().projector()

    def media_info(self, source: object, *, name: str = "source") -> "MediaInfo":
        """Return the size of an image, a sound or a video, and the number of its tokens in a prompt: of a path, bytes,
        a data: URL, decoded media, or a part of a message. Nothing is encoded. `name` is that in errors.

        Raises UsageError for what cannot be read, UnsupportedError for what the model does not read.
        """
        return self._resources.media_encoder().info(source, name)

    def _report_prompt(self) -> None:
        """Report that a prompt is being rendered or tokenized. The progress function may raise, which stops that."""
        if progress := self._session.progress:
            progress("prompt", 0, 0)

    def _run_options(self, given: Mapping[str, object]) -> Options:
        """Merge the options of one run into the model's options; `schema` is converted to a JSON schema text."""
        if "schema" in given:
            from localinfer.generation.structured.json_schema import schema_text

            schema = schema_text(given["schema"])
            given = {name: value for name, value in given.items() if name != "schema"} | {"json_schema": schema}
        layer = from_keywords(given)
        for name in layer:
            if FLAGS[name].section in ("model", "draft", "media", "adapters"):
                raise UsageError(f"{name}: can only be set when the model is loaded")
        return merge(layer, asdict(self.options))

"""The base class of `Model`: its components, and what can be read without evaluating anything."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from operator import index
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
    from localinfer.model.media_encoder import MediaIds, MediaInfo, Message
    from localinfer.multimodal.access import MediaAccess
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
        return self.engine.is_diffusion

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

    def tokenize(
        self, text: str, *, add_special: bool = True, parse_special: bool = False, media: Sequence[object] = (),
        media_access: "MediaAccess | None" = None, on_wait: Callable[[], None] | None = None,
    ) -> list[int]:  # fmt: skip
        """Return the token ids of a text.

        `media` are images, sounds and videos, in the order of the markers <__media__> in the text; without markers,
        they come before it. Their token ids are negative.

        With `add_special`, the ids begin with BOS if the model expects it, but never with two. With `parse_special`,
        the texts of control tokens become control tokens.

        With `on_wait`, a child process tokenizes a long text. Meanwhile `on_wait` is called several times a second; it
        may raise, which ends the process.
        """
        if media:
            return self._tokenize_with_media(
                text, media, media_access, on_wait, add_special=add_special, parse_special=parse_special
            )
        ids = self._encode(text, on_wait, add_special=add_special, parse_special=parse_special)
        return ids[1:] if ids[:2] == [self.tokenizer.bos] * 2 else ids

    def _encode_messages(
        self, messages: "Sequence[Message]", access: "MediaAccess | None", media_ids: "MediaIds | None"
    ) -> "Sequence[Message]":
        """Return the messages with token ids in place of images and sounds: see `MediaEncoder.encode_messages`."""
        hooks = self.engine.sequence.modifiers.hooks
        return self._resources.encode_messages(messages, access, media_ids, self.n_ctx, hooks)

    def _tokenize_with_media(
        self, text: str, media: Sequence[object], access: "MediaAccess | None", on_wait: Callable[[], None] | None, *,
        add_special: bool, parse_special: bool,
    ) -> list[int]:  # fmt: skip
        from localinfer.chat_template.placeholders import MEDIA_MARKER
        from localinfer.multimodal.access import ANY_FILE

        pieces = text.split(MEDIA_MARKER) if MEDIA_MARKER in text else ["" for _ in media] + [text]
        if len(pieces) != len(media) + 1:
            raise UsageError(f"media: {len(media)} for {len(pieces) - 1} markers {MEDIA_MARKER} in the prompt")
        encoder = self._resources.media_encoder()
        hold, hooks = self.engine.prompt_media.begin(), self.engine.sequence.modifiers.hooks
        ids_of_media = encoder.encode_sources(media, access or ANY_FILE, hold, self.n_ctx, hooks)
        ids = self.tokenize(pieces[0], add_special=add_special, parse_special=parse_special, on_wait=on_wait)
        for media_ids, piece in zip(ids_of_media, pieces[1:], strict=True):
            ids += media_ids
            if piece:
                keywords = {"add_special": False, "parse_special": parse_special, "continues_text": True}
                ids += self._encode(piece, on_wait, **keywords)
        return ids

    def _encode(self, text: str, on_wait: Callable[[], None] | None, **keywords: bool) -> list[int]:
        if on_wait is not None:
            from localinfer.chat_template.long_prompts import can_run_in_child, encode_in_child, is_long

            if is_long(text) and can_run_in_child(self.file):
                return encode_in_child(self.file, text, on_wait, **keywords)
        return self.tokenizer.encode(text, **keywords)

    def _report_prompt(self) -> None:
        """Report that a prompt is being rendered or tokenized. The progress function may raise, which stops that."""
        if progress := self._session.progress:
            progress("prompt", 0, 0)

    def detokenize(
        self, ids: Sequence[int], *, special: bool = False, on_wait: Callable[[], None] = lambda: None
    ) -> str:
        """Return the text of token ids; with `special`, it includes the texts of control tokens, and the marker
        <__media__> for each image and sound.

        `on_wait` is called after every few thousand tokens; it may raise.
        """
        checked = self._check_ids(ids, media=True)
        if min(checked, default=0) >= 0:
            return self.tokenizer.decode(checked, special=special, on_wait=on_wait)
        from localinfer.chat_template.placeholders import MEDIA_MARKER

        runs = ((is_media, list(run)) for is_media, run in groupby(checked, lambda id: id < 0))
        texts = (
            MEDIA_MARKER * special if is_media else self.tokenizer.decode(run, special=special, on_wait=on_wait)
            for is_media, run in runs
        )
        return "".join(texts)

    def _check_ids(self, ids: Sequence[int], *, media: bool = False) -> list[int]:
        """Return token ids as a list of int. Raises UsageError if one is not in the vocabulary, nor, with `media`, the
        id of a row that the engine was given, or of a token of an encoder."""
        try:
            tokens = [index(id) for id in ids]
        except TypeError:
            raise UsageError("tokens: must be a flat list of integers") from None
        lowest = -self.n_vocab if media and self.engine.is_encoder_decoder else 0
        wrong = next((id for id in tokens if not lowest <= id < self.n_vocab), None)
        if media and wrong is not None and (table := self.engine.runner.media_table):
            outside = (id for id in tokens if not 0 <= id < self.n_vocab)
            wrong = next((id for id in outside if id >= 0 or table.span_of(id) is None), None)
        if wrong is not None:
            raise UsageError(f"tokens: token id {wrong} is not in the vocabulary of {self.n_vocab} tokens")
        return tokens

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

"""The resources that a model and its handles for concurrent runs share. Each is created on first use, because most
programs need only some of them.
"""

from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING

from localinfer.generation.session import GenerationSession
from localinfer.gguf.reader import GGUF
from localinfer.runtime.engine import Engine
from localinfer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from localinfer.chat_template.prompt_builder import PromptBuilder
    from localinfer.embedding.embedder import Embedder
    from localinfer.generation.structured.vocabulary import Vocabulary
    from localinfer.model.media_encoder import MediaEncoder, MediaIds, Message
    from localinfer.multimodal.access import MediaAccess
    from localinfer.runtime.activations.hooks import SequenceHooks


class SharedResources:
    """The prompt builder, the media encoder, the embedder and the constraint vocabulary of a model. Threads may call
    the methods.
    """

    def __init__(
        self, f: GGUF, tokenizer: Tokenizer, engine: Engine, session: GenerationSession,
        media_encoder: "Callable[[], MediaEncoder]",
    ) -> None:  # fmt: skip
        self._file, self._tokenizer, self._engine, self._session = f, tokenizer, engine, session
        self._create_media_encoder = media_encoder
        self._media_encoder: MediaEncoder | None = None
        self._lock = Lock()  # so that each is created once
        self._prompt_builder: PromptBuilder | None = None
        self._embedder: Embedder | None = None
        self._constraint_vocabulary: Vocabulary | None = None

    def prompt_builder(self) -> "PromptBuilder":
        """Return the prompt builder, which starts the process of the chat template when it renders the first prompt."""
        from localinfer.chat_template.prompt_builder import PromptBuilder

        with self._lock:
            self._prompt_builder = self._prompt_builder or PromptBuilder(self._file, self._tokenizer)
            return self._prompt_builder

    def media_encoder(self) -> "MediaEncoder":
        """Return the encoder of images and sounds, which opens the projector when it encodes the first one."""
        with self._lock:
            self._media_encoder = self._media_encoder or self._create_media_encoder()
            return self._media_encoder

    def encode_messages(
        self, messages: "Sequence[Message]", access: "MediaAccess | None", media_ids: "MediaIds | None", n_ctx: int,
        hooks: "SequenceHooks | None" = None,
    ) -> "Sequence[Message]":  # fmt: skip
        """Return the messages with token ids in place of images and sounds: see `MediaEncoder.encode_messages`. By
        default, they may name any file.
        """
        if not has_media(messages):  # most conversations have only texts, and need no modules for media
            return messages
        from localinfer.multimodal.access import ANY_FILE

        return self.media_encoder().encode_messages(messages, access or ANY_FILE, media_ids, n_ctx, hooks)

    def embedder(self) -> "Embedder":
        """End the current run of the model, and return the embedder, which uses the model's engine."""
        from localinfer.embedding.embedder import Embedder

        self._session.end()
        self._engine.use_adapters(self._engine.runner.default_scales)
        with self._lock:
            self._embedder = self._embedder or Embedder(self._engine, self._tokenizer)
            return self._embedder

    def constraint_vocabulary(self) -> "Vocabulary":
        """Return the vocabulary in the form that grammars need."""
        from localinfer.generation.structured.vocabulary import Vocabulary

        with self._lock:
            if self._constraint_vocabulary is None:
                self._constraint_vocabulary = Vocabulary(self._tokenizer, self._engine.n_vocab)
            return self._constraint_vocabulary

    def close(self) -> None:
        """End the processes of the chat template and of constraints, and close the projector."""
        if self._media_encoder is not None:
            self._media_encoder.close()
        if self._prompt_builder is not None:
            self._prompt_builder.close()
        if self._constraint_vocabulary is not None:
            self._constraint_vocabulary.workers.close()


def has_media(messages: object) -> bool:
    """Return whether a message has a part that is not a text. Invalid messages have none."""
    contents = [each.get("content") for each in as_list(messages) if isinstance(each, Mapping)]
    parts = [part for content in contents if isinstance(content, list | tuple) for part in content]
    return any(isinstance(part, Mapping) and part.get("type") != "text" for part in parts)


def as_list(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else ()

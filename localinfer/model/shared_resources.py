"""The resources that a model and its handles for concurrent runs share. Each is created on first use, because most
programs need only some of them.
"""

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


class SharedResources:
    """The prompt builder, the embedder and the constraint vocabulary of a model. Threads may call the methods."""

    def __init__(self, f: GGUF, tokenizer: Tokenizer, engine: Engine, session: GenerationSession) -> None:
        self._file, self._tokenizer, self._engine, self._session = f, tokenizer, engine, session
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

    def embedder(self) -> "Embedder":
        """End the current run of the model, and return the embedder, which uses the model's engine."""
        from localinfer.embedding.embedder import Embedder

        self._session.end()
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
        """End the processes of the chat template and of constraints."""
        if self._prompt_builder is not None:
            self._prompt_builder.close()
        if self._constraint_vocabulary is not None:
            self._constraint_vocabulary.workers.close()

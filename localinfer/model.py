"""The Python API: a model that generates text and answers chats.

    with localinfer.load("smollm2") as model:
        print(model.chat([{"role": "user", "content": "Hello"}]).text)

`localinfer.loaded_model` has the two kinds of models: the one that `load` returns, and its handles for concurrent runs.
`Model` combines the GGUF file, the tokenizer, the chat template, the engine and the generation session. It does no
terminal output.
"""

import math
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from operator import index
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import LocalInferError, UsageError
from localinfer.generation.pieces import Piece, Stats
from localinfer.generation.reasoning import merge_reasoning
from localinfer.generation.result import GenerationStream
from localinfer.generation.sampling import SamplerChain
from localinfer.generation.session import GenerationSession, Progress
from localinfer.generation.token_selection import SamplerFunction
from localinfer.gguf.reader import GGUF, Tensor, Value
from localinfer.options import (
    CONSTRAINT_OPTIONS,
    FLAGS,
    Options,
    from_keywords,
    merge,
)
from localinfer.options.keywords import RunKeywords
from localinfer.runtime.engine import Engine
from localinfer.text_generation import TextGeneration
from localinfer.tokenizer import Tokenizer

if TYPE_CHECKING:  # `generate` needs neither chat templates nor constraints
    from localinfer.chat_template.conversation import Conversation, Message
    from localinfer.chat_template.prompt import Prompt
    from localinfer.chat_template.prompt_builder import PromptBuilder
    from localinfer.embedding.embedder import Embedder
    from localinfer.embedding.reranking import RankedDocument
    from localinfer.generation.structured import Constraint, Vocabulary

CHANNEL_TOKEN = "<|channel|>"  # in templates of gpt-oss, whose tool-call parser also separates the reasoning


class Model(TextGeneration):
    """A loaded model. `options` are the defaults of every run; `stats` are those of the latest run.

    Only one run is active at a time: starting another one ends the previous one. Methods may be called from several
    threads, which take turns after each token. After `close`, methods that compute raise LocalInferError.
    """

    def __init__(
        self, f: GGUF, options: Options, tokenizer: Tokenizer, engine: Engine, session: GenerationSession
    ) -> None:
        self.file, self.options, self.tokenizer, self.engine = f, options, tokenizer, engine
        self.stats = Stats()
        self._session = session

    @abstractmethod
    def close(self) -> None:
        """End the current run, and release what belongs to this model or handle."""

    @abstractmethod
    def concurrent(self, slot: int) -> "Model":
        """Return a handle to this model for the scheduler slot `slot`, to run requests in parallel.

        The scheduler evaluates the runs of all handles together (continuous batching), and prompts share their common
        prefix (prefix caching). Every run generates the same text as it would alone. There are `parallel` slots. While
        the handles are used, this model itself must not run.

            with ThreadPoolExecutor(8) as threads:
                results = threads.map(lambda slot: model.concurrent(slot).generate(prompts[slot]), range(8))
        """

    @abstractmethod
    def _get_prompt_builder(self) -> "PromptBuilder":
        """Return the prompt builder; the first conversation creates it."""

    @abstractmethod
    def _get_embedder(self) -> "Embedder":
        """End the current run and return the embedder; the first call creates it."""

    @abstractmethod
    def _get_constraint_vocabulary(self) -> "Vocabulary":
        """Return the vocabulary for constraints; the first constraint creates it."""

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
        return self.engine.compiled_graph.builder.hparams.count("context_length", self.n_ctx)

    @property
    def n_vocab(self) -> int:
        """The number of tokens in the vocabulary."""
        return self.engine.n_vocab

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Return the token ids of a text.

        With `add_special`, the ids begin with BOS if the model expects it, but never with two. With `parse_special`,
        the texts of control tokens become control tokens.
        """
        ids = self.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)
        return ids[1:] if ids[:2] == [self.tokenizer.bos] * 2 else ids

    def detokenize(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Return the text of token ids; with `special`, it includes the texts of control tokens."""
        return self.tokenizer.decode(self._check_ids(ids), special=special)

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Return the logits after each of these tokens: float32 (len(ids), n_vocab)."""
        return self._session.logits(self._check_ids(ids))

    def stream(
        self, prompt: str | Sequence[int], *, sampler: SamplerFunction | None = None, **options: Unpack[RunKeywords]
    ) -> GenerationStream:
        """Continue a text or token ids, and yield the output in pieces. `options` override the model's options for this
        run.

        `sampler` replaces the sampler chain of the options. It is called with the logits, float32 (n_vocab,), and the
        list of the ids of prompt and output so far, and returns the id of the next token. The additional option
        `schema` is a JSON schema that the output must match: a dict, a JSON text or a pydantic model.

        Raises immediately: UsageError, ConstraintError for an invalid schema or grammar, ContextOverflowError for a
        prompt that is too long, LocalInferError for a file that has changed. Raises after the last piece:
        ContextOverflowError if the context is full, IncompleteOutputError if the output does not satisfy its
        constraint.
        """
        self.engine.require_predictions()
        run_options = self._run_options(options)
        tokens = self.tokenize(prompt) if isinstance(prompt, str) else self._check_ids(prompt)
        return GenerationStream(self._run(tokens, run_options, sampler), self.stats)

    def score(self, prompt: str | Sequence[int], ids: Sequence[int], *, logprobs: int = 1) -> list[Piece]:
        """Evaluate a given output `ids` behind a prompt, and return its pieces as if they had been generated.

        Each piece has its probability and `logprobs` alternatives. Ends the current run. Raises the same errors as
        `stream` does immediately.
        """
        tokens = self.tokenize(prompt) if isinstance(prompt, str) else self._check_ids(prompt)
        if not tokens or not ids:
            raise UsageError("prompt and ids: at least one token each is required")
        self.file.check_unchanged()
        return self._session.score(tokens, self._check_ids(ids), logprobs)

    def stream_chat(self, messages: Sequence["Message"], *, tools: Sequence[Mapping[str, object]] | None = None,
             documents: Sequence[Mapping[str, object]] | None = None,
             template_kwargs: Mapping[str, object] | None = None, continue_final_message: bool = False,
             parse_special: bool = False, sampler: SamplerFunction | None = None, prefix_ids: Sequence[int] = (),
             **options: Unpack[RunKeywords]) -> GenerationStream:
        """Answer a conversation of messages {"role": ..., "content": ...}, and yield the answer in pieces.

        The prompt is what `render` returns. The answer begins with the tokens `prefix_ids`, which are its first pieces.
        An assistant message may contain `ids`, the token ids of the pieces of an earlier answer: the prompt repeats
        exactly these tokens, so that the KV cache of the conversation stays valid.

        With `tools` (JSON schemas of functions), pieces carry parsed tool calls in `calls`. To continue, append the
        assistant message with its `tool_calls`, and one message with the role "tool" for each result.

        For options, `sampler` and errors see `stream`.
        """
        from localinfer.chat_template.conversation import Conversation

        self.engine.require_open()
        self.engine.require_predictions()
        conversation = Conversation(
            messages=messages, tools=tools, documents=documents, template_kwargs=template_kwargs or {},
            continue_final_message=continue_final_message)
        run_options = self._run_options(options)
        prompt = self._get_prompt_builder().build(conversation, run_options, parse_special=parse_special)
        reasoning_end_ids = self._reasoning_end_ids(prompt)
        pieces = self._run(prompt.ids, run_options, sampler, reasoning_end_ids, self._check_ids(prefix_ids))
        template = self._get_prompt_builder().template(run_options, with_tools=tools is not None).source
        has_channels = CHANNEL_TOKEN in template and run_options.reasoning_format != "none"
        if tools or has_channels:
            pieces = self._parse_tool_calls(pieces, template, conversation)
        return GenerationStream(pieces, self.stats)

    def embed(self, texts: "str | Sequence[str | Sequence[int]]", *, pooling: str = "", normalize: bool | float = True,
              truncate: bool = False, progress: Progress | None = None) -> NDArray[np.float32]:
        """Return the embeddings of texts, or of lists of token ids: float32 (len(texts), n_embd).

        The texts are evaluated in batches, independently of each other. The KV cache of the previous conversation is
        discarded. `pooling` is "mean", "cls" (the first token), "last", or "rank" (the scores of a reranker's
        classifier); the default is the pooling type of the file, otherwise "mean". `normalize` divides each embedding
        by its Euclidean norm. A number selects another norm, as in llama.cpp: -1 none, 0 the maximum becomes 32760, 1
        taxicab, 2 Euclidean, p the p-norm. Scores are never normalized. `truncate` cuts texts that do not fit in the
        context, with a warning.

        Raises UsageError for no texts or empty texts, ContextOverflowError for a text that does not fit,
        UnsupportedError for pooling "rank" if the file has no classifier.
        """
        return self._get_embedder().embed(texts, pooling, normalize=normalize, truncate=truncate, progress=progress)

    def rerank(self, query: str, documents: Sequence[str], *, truncate: bool = False,
               progress: Progress | None = None) -> "list[RankedDocument]":
        """Return the documents in the order of their relevance to a query, each with its `index` and `score`.

        Raises UnsupportedError if the file has no classifier. Otherwise like `embed`.
        """
        from localinfer.embedding.reranking import rank

        scores = self._get_embedder().rerank(query, documents, truncate=truncate, progress=progress)
        return rank(documents, scores)

    def render(self, messages: Sequence["Message"], *, tools: Sequence[Mapping[str, object]] | None = None,
               documents: Sequence[Mapping[str, object]] | None = None,
               template_kwargs: Mapping[str, object] | None = None, add_generation_prompt: bool = True,
               continue_final_message: bool = False, parse_special: bool = False, **options: object) -> "Prompt":
        """Apply the chat template to a conversation, and return the prompt: its `text` and its token `ids`.

        `tools` (JSON schemas of functions), `documents` ({"title": ..., "text": ...}) and `template_kwargs`, such as
        `enable_thinking=False`, are passed to the template. The prompt ends with the generation prompt, unless
        `add_generation_prompt` is False. With `continue_final_message`, it ends inside the last message, which the
        model continues. The option `system_prompt` is added, unless the messages begin with a system message. The texts
        of messages never become control tokens, unless `parse_special` is set.

        Raises UnsupportedError if the model has no chat template, UsageError for an invalid conversation,
        LocalInferError for an error of the template.
        """
        from localinfer.chat_template.conversation import Conversation

        conversation = Conversation(
            messages=messages, tools=tools, documents=documents, template_kwargs=template_kwargs or {},
            add_generation_prompt=add_generation_prompt, continue_final_message=continue_final_message)
        return self._get_prompt_builder().build(conversation, self._run_options(options), parse_special=parse_special)

    def truncate_messages(self, messages: Sequence["Message"], **render_options: Any) -> "list[Message]":
        """Return the messages that fit in the context, without the oldest turns if necessary (context shift).

        Returns all messages if they leave at least an eighth of the context free. Otherwise drops the oldest turns
        until half of the context is free, so that the prompt is not evaluated again after every answer. Keeps the
        messages before the first turn, such as the system prompt, and always the last turn.

        `render_options` are arguments of `render`.
        """
        from localinfer.chat_template.truncation import drop_oldest_turns

        def count_tokens(left: Sequence["Message"]) -> int:
            return len(self.render(left, **render_options).ids)

        if count_tokens(messages) <= self.n_ctx - self.n_ctx // 8:
            return list(messages)
        return drop_oldest_turns(messages, count_tokens, self.n_ctx // 2)

    def require_chat_template(self) -> None:
        """Start the process of the chat template ahead of time.

        Raises UnsupportedError if the model has no chat template, UsageError for an unknown template or invalid
        template variables.
        """
        self._get_prompt_builder().prepare(self.options)

    def save_cache(self, path: str | Path) -> None:
        """Write the KV cache of the current sequence to a file that only its owner can read, for `load_cache`.

        The file is replaced atomically. Raises LocalInferError if it cannot be written.
        """
        from localinfer.runtime import snapshot

        snapshot.save(Path(path), self.engine, self.options)

    def load_cache(self, path: str | Path) -> int:
        """Load a KV cache that `save_cache` has written, and return its number of tokens.

        A prompt that begins with these tokens reuses the cache. A file that is damaged, or belongs to another model or
        other options, is ignored with a warning, and the result is 0. Raises UsageError for a file of another kind.
        """
        from localinfer.runtime import snapshot

        self._session.end()
        try:
            return snapshot.load(Path(path), self.engine, self.options)
        except UsageError:  # not a snapshot: the next save would overwrite somebody else's file
            raise
        except LocalInferError as error:
            self.engine.require_open()
            warnings.warn(f"{error}; the file is ignored", stacklevel=2)
            return 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()

    def sampler(self, **options: Unpack[RunKeywords]) -> SamplerChain:
        """Return the sampler chain that the options describe, which can be passed to `generate`."""
        return self._session.sampler(self._run_options(options))

    def _run(self, prompt: list[int], options: Options, sampler: SamplerFunction | None,
             constraint_start_ids: Sequence[int] = (), prefix_ids: Sequence[int] = ()) -> Iterator[Piece]:
        """Start a run, whose constraint applies to the output after the tokens `constraint_start_ids`."""
        self.file.check_unchanged()
        constraint = self._constraint(options, constraint_start_ids)
        self.stats, pieces = self._session.run(prompt, options, sampler, constraint, prefix_ids)
        return merge_reasoning(pieces, self.tokenizer) if options.reasoning_format == "none" else pieces

    def _parse_tool_calls(
        self, pieces: Iterator[Piece], template: str, conversation: "Conversation"
    ) -> Iterator[Piece]:
        from localinfer.generation import tool_calls

        parser = tool_calls.tool_call_parser(
            template, self.tokenizer, conversation.tools, first_number=conversation.n_tool_calls)
        return tool_calls.parse_pieces(pieces, parser) if parser else pieces

    def _reasoning_end_ids(self, prompt: "Prompt") -> list[int]:
        """Return the tokens that end the reasoning if the prompt ends inside of it, otherwise an empty list."""
        inside = prompt.text.rstrip().endswith("<think>")
        return self.tokenize("</think>", add_special=False, parse_special=True) if inside else []

    def _constraint(self, options: Options, start_ids: Sequence[int]) -> "Constraint | None":
        if not any(getattr(options, name) for name in CONSTRAINT_OPTIONS):
            return None
        from localinfer.generation.structured import Constraint, constraint_spec

        spec = constraint_spec(options)
        return Constraint(spec, self._get_constraint_vocabulary(), start_ids)

    def _run_options(self, given: Mapping[str, object]) -> Options:
        """Merge the options of one run into the model's options; `schema` is converted to a JSON schema text."""
        if "schema" in given:
            from localinfer.generation.structured.json_schema import schema_text

            schema = schema_text(given["schema"])
            given = {name: value for name, value in given.items() if name != "schema"} | {"json_schema": schema}
        layer = from_keywords(given)
        for name in layer:
            if FLAGS[name].section in ("model", "draft"):
                raise UsageError(f"{name}: can only be set when the model is loaded")
        return merge(layer, asdict(self.options))

    def _check_ids(self, ids: Sequence[int]) -> list[int]:
        """Return token ids as a list of int. Raises UsageError if one is not in the vocabulary."""
        try:
            tokens = [index(id) for id in ids]
        except TypeError:
            raise UsageError("tokens: must be a flat list of integers") from None
        wrong = next((id for id in tokens if not 0 <= id < self.n_vocab), None)
        if wrong is not None:
            raise UsageError(f"tokens: token id {wrong} is not in the vocabulary of {self.n_vocab} tokens")
        return tokens

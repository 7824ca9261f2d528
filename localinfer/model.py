"""The Python face: a model that continues texts and answers messages.

    with load("smollm2") as model:
        for piece in model.chat([{"role": "user", "content": "Hello"}]):
            print(piece.text, end="")

Here file, tokenizer, template and session come together; the work is theirs. Knows nothing of a screen.
"""

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from operator import index
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from localinfer import tokenizer
from localinfer.architectures import EAGLE3
from localinfer.engine import reading
from localinfer.engine.engine import Engine, require_room_to_load
from localinfer.errors import LocalInferError, UsageError
from localinfer.files.gguf import GGUF, Tensor, Value, open_gguf
from localinfer.generation.choosing import SamplerFunction
from localinfer.generation.pieces import Piece, Stats
from localinfer.generation.sampling import Sampler
from localinfer.generation.session import Progress, Session
from localinfer.generation.thoughts import as_text
from localinfer.models import registry
from localinfer.options import (
    FLAGS,
    FORMS,
    Options,
    from_environment,
    from_keywords,
    from_metadata,
    guessers_named,
    merge,
)

if TYPE_CHECKING:  # what continues texts needs neither templates nor forms
    from localinfer.embedding.embedder import Embedder
    from localinfer.engine.lanes import Lanes
    from localinfer.generation.constraint import Constraint, Vocabulary
    from localinfer.prompt.conversation import Conversation, Message
    from localinfer.prompt.prompt import Prompt
    from localinfer.prompt.writer import PromptWriter

__all__ = ["Model", "Piece", "Stats", "load"]

HAS_CHANNELS = "<|channel|>"  # a template of gpt-oss: thoughts and answer are told apart as calls are


def load(path_or_name: str | Path, *, progress: Progress | None = None, **options: object) -> "Model":
    """Open a GGUF file, or a model that `localinfer list` names, and make it ready to run.

    `options` are fields of Options, such as ctx_size=2048. What they leave open is taken from the environment
    (LOCALINFER_*), then from models.toml, then from the file. Raises UsageError, ModelNotFound, Unsupported,
    NotEnoughMemory, or LocalInferError for a damaged file.
    """
    name = _checked_name(path_or_name)
    given, environment = from_keywords(options), from_environment(os.environ)
    named = registry.default_options(name)
    f = open_gguf(registry.find(name))
    return Model(f, merge(given, environment, named, from_metadata(f.metadata, f.path)), progress)


def _checked_name(value: object) -> str | Path:
    if not isinstance(value, str | Path):
        raise UsageError(f"path_or_name: must be a path or a name, not {type(value).__name__}")
    return value


class Model:
    """A loaded model. `options` hold for every run that does not say otherwise; `stats` tell of the last one.

    One run at a time: another one ends the one before. Several threads take turns, token by token; after `close`,
    whatever would compute raises LocalInferError.
    """

    def __init__(self, f: GGUF, options: Options, progress: Progress | None = None) -> None:
        require_room_to_load(f)
        self.file = f = reading.as_asked(f, options, progress)
        self.options = options
        self.stats = Stats()
        self.tokenizer = tokenizer.from_gguf(f)
        draft = self._draft_file()
        head = draft if draft and draft.metadata.get("general.architecture") == EAGLE3 else None
        self.engine = Engine(f, options, progress, head)
        for warning in (*self.engine.warnings, *beyond_training(self), *without_a_guesser(options)):
            warnings.warn(warning, stacklevel=3)
        self._draft = self._draft_engine(draft, progress) if draft and not head else None
        self._session = Session(self.engine, self.tokenizer, progress, self._draft)
        self._progress = progress
        self._lanes: Lanes | None = None  # once there are models beside it
        self._draft_lanes: Lanes | None = None  # of the draft model, if there is one
        self._beside: dict[int, Model] = {}
        self._vocabulary: Vocabulary | None = None  # once an answer has a form
        self._writer: PromptWriter | None = None  # once there is a conversation
        self._embedder: Embedder | None = None  # once there are texts to compare

    def beside(self, number: int) -> "Model":
        """The same model for another thread, which has this number: its runs are computed together with those of others
        that were made so, each as if it were alone; what prompts have in common is computed once. There is room for as
        many as `parallel` says, and this model itself has no runs while they have.

            with ThreadPoolExecutor(8) as threads:
                answers = threads.map(lambda number: list(model.beside(number).generate(prompts[number])), range(8))
        """
        from localinfer.engine.lanes import Lanes

        with self.engine.tables:
            if number not in self._beside:
                self._lanes = self._lanes or Lanes(self.engine)
                if self._draft:
                    self._draft_lanes = self._draft_lanes or Lanes(self._draft)
                self._beside[number] = Beside(self, self._lanes, self._draft_lanes)
            return self._beside[number]

    @property
    def parallel(self) -> int:
        """How many runs there is room for."""
        return self.engine.plan.sequences

    @property
    def metadata(self) -> Mapping[str, Value]:
        """The file's keys and values."""
        return self.file.metadata

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The file's tensors by name."""
        return self.file.tensors

    @property
    def n_ctx(self) -> int:
        """How many tokens the context holds."""
        return self.engine.n_ctx

    @property
    def n_ctx_train(self) -> int:
        """How many tokens the texts had at most that the model was trained on."""
        return self.engine.program.recorder.keys.count("context_length", self.n_ctx)

    @property
    def n_vocab(self) -> int:
        return self.engine.n_vocab

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """The ids of a text, behind BOS if the model wants it; it spells control tokens if `parse_special`.

        There is only one BOS, also if the text begins with what spells it.
        """
        ids = self.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)
        return ids[1:] if ids[:2] == [self.tokenizer.bos] * 2 else ids

    def detokenize(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of ids; control tokens are shown if `special`."""
        return self.tokenizer.decode(self._checked(ids), special=special)

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """What the model expects after each of these tokens: float32, (len(ids), n_vocab)."""
        return self._session.logits(self._checked(ids))

    def generate(
        self, prompt: str | Sequence[int], *, sampler: SamplerFunction | None = None, **options: object
    ) -> Iterator[Piece]:
        """Continue a text, or tokens, piece by piece. `options` are those of Options that are not the model's.

        `sampler` chooses the tokens in the place of the options' chain: it is given the logits, float32 (n_vocab,), and
        the ids of prompt and text so far, a list, and returns the id of the next token. `schema` is one more option: a
        JSON schema as a dict, a text, or a pydantic model, that the text shall fit.

        Raised at once: UsageError, BadForm for a schema or grammar, ContextOverflow for a prompt that is too long,
        LocalInferError for a file that has changed. After the last piece comes ContextOverflow when the context is
        full, and Incomplete for a text that has not the form that was asked for.
        """
        self.engine.require_predictions()
        chosen = self._chosen(options)
        tokens = self.tokenize(prompt) if isinstance(prompt, str) else self._checked(prompt)
        return self._run(tokens, chosen, sampler)

    def score(self, prompt: str | Sequence[int], ids: Sequence[int], *, logprobs: int = 1) -> list[Piece]:
        """The pieces of a text `ids` behind a prompt as if they were generated, with their probabilities and so many
        alternatives each. Ends the run that is going on; raises what `generate` raises at once.
        """
        tokens = self.tokenize(prompt) if isinstance(prompt, str) else self._checked(prompt)
        if not tokens or not ids:
            raise UsageError("prompt and ids: at least one token each is needed")
        self.file.check_unchanged()
        return self._session.score(tokens, self._checked(ids), logprobs)

    def chat(self, messages: Sequence["Message"], *, tools: Sequence[Mapping[str, object]] | None = None,
             documents: Sequence[Mapping[str, object]] | None = None,
             template_kwargs: Mapping[str, object] | None = None, continue_final_message: bool = False,
             parse_special: bool = False, sampler: SamplerFunction | None = None, begun: Sequence[int] = (),
             **options: object) -> Iterator[Piece]:
        """Answer a conversation of {"role": ..., "content": ...}, piece by piece; otherwise as `generate`.

        What the model is shown is what `render` returns, and the tokens that its answer has `begun` with, if any: these
        are the first pieces. A message of the assistant may have `ids`, the tokens of pieces of an earlier answer: they
        are shown again as they were, so that a conversation goes on without anything being read twice.

        Calls of `tools` are told apart from the answer: they are the `calls` of pieces. A message with `tool_calls`,
        and one of role "tool" for each result, let it go on.
        """
        from localinfer.prompt.conversation import Conversation

        self.engine.require_open()
        self.engine.require_predictions()
        conversation = Conversation(
            messages=messages, tools=tools, documents=documents, template_kwargs=template_kwargs or {},
            continue_final_message=continue_final_message)
        chosen = self._chosen(options)
        prompt = self._prompts().write(conversation, chosen, parse_special=parse_special)
        behind = self._end_of_reasoning(prompt)
        pieces = self._run(prompt.ids, chosen, sampler, behind, self._checked(begun))
        template = self._prompts().template(chosen, with_tools=tools is not None).source
        has_parts = HAS_CHANNELS in template and chosen.reasoning_format != "none"
        return self._with_calls(pieces, template, conversation) if tools or has_parts else pieces

    def embed(self, texts: "str | Sequence[str | Sequence[int]]", *, pooling: str = "", normalize: bool | float = True,
              truncate: bool = False, progress: Progress | None = None) -> NDArray[np.float32]:
        """A vector for each text, or for each list of token ids: float32 (len(texts), n). Texts are computed together,
        and do not see each other; what was remembered of a conversation is forgotten.

        `pooling` tells how a text's tokens become one vector: "mean", "cls" (the first token), "last", or "rank", the
        scores of the file's classifier; if it is empty, as the file says, or "mean" where it says nothing. With
        `normalize` vectors are divided by their length; a number is that of another norm, as llama.cpp counts them:
        -1 none, 0 the largest value becomes 32,760, 1 taxicab, 2 Euclidean, and so on. Scores are never normalised.

        UsageError for no texts, or empty ones; ContextOverflow for a text that does not fit, which is cut with
        `truncate`: a warning tells of it. Unsupported for a classifier that the file has not.
        """
        return self._embeds().embed(texts, pooling, normalize=normalize, truncate=truncate, progress=progress)

    def rerank(self, query: str, documents: Sequence[str], *, truncate: bool = False,
               progress: Progress | None = None) -> NDArray[np.float32]:
        """How well each document answers a query: float32 (len(documents),), more is better. By the file's classifier;
        Unsupported where there is none. Otherwise as `embed`."""
        return self._embeds().rerank(query, documents, truncate=truncate, progress=progress)

    def _embeds(self) -> "Embedder":
        from localinfer.embedding.embedder import Embedder

        self._session.end()
        if self._embedder is None:
            self._embedder = Embedder(self.engine, self.tokenizer)
        return self._embedder

    def render(self, messages: Sequence["Message"], *, tools: Sequence[Mapping[str, object]] | None = None,
               documents: Sequence[Mapping[str, object]] | None = None,
               template_kwargs: Mapping[str, object] | None = None, add_generation_prompt: bool = True,
               continue_final_message: bool = False, parse_special: bool = False, **options: object) -> "Prompt":
        """What the chat template makes of a conversation: `text`, and the `ids` that the model sees.

        Templates show `tools` (JSON schemas of functions), `documents` ({"title": ..., "text": ...}) and
        `template_kwargs`, such as enable_thinking=False, if they know them. The prompt ends where an answer begins,
        unless `add_generation_prompt` is False, or in the midst of the last message, with `continue_final_message`.
        The option system_prompt is put first, unless the messages begin with a system message themselves. What
        messages spell stays text; with `parse_special` it may become control tokens. Unsupported is raised for a
        model without a chat template, UsageError for what is no conversation, and LocalInferError says what the
        template finds wrong.
        """
        from localinfer.prompt.conversation import Conversation

        conversation = Conversation(
            messages=messages, tools=tools, documents=documents, template_kwargs=template_kwargs or {},
            add_generation_prompt=add_generation_prompt, continue_final_message=continue_final_message)
        return self._prompts().write(conversation, self._chosen(options), parse_special=parse_special)

    def fitting(self, messages: Sequence["Message"], **how: Any) -> "list[Message]":
        """The messages that a conversation can go on with: all, or when these leave less than an eighth of the context
        to the answer, only so many of the last turns that half of it is free, and what stands before the first turn.

        `how` is as for `render`. The last turn stays, be it too long. Who goes on with what is returned has the rest
        read again only once in a while.
        """
        from localinfer.prompt.turns import without_oldest

        def tokens_of(left: Sequence["Message"]) -> int:
            return len(self.render(left, **how).ids)

        if tokens_of(messages) <= self.n_ctx - self.n_ctx // 8:
            return list(messages)
        return without_oldest(messages, tokens_of, self.n_ctx // 2)

    def require_chat_template(self) -> None:
        """Start the template's process, which takes a moment. Unsupported if the model has none, UsageError if the
        options name none that there is, or variables that cannot be.
        """
        self._prompts().prepare(self.options)

    def save_cache(self, path: str | Path) -> None:
        """Write what is remembered of prompt and text so far into a file of the owner's alone, for `load_cache`.

        It replaces what is there, whole or not at all. LocalInferError when it cannot be written.
        """
        from localinfer.engine import snapshot

        snapshot.save(Path(path), self.engine, self.options)

    def load_cache(self, path: str | Path) -> int:
        """Remember what `save_cache` has written: how many tokens. A prompt that begins so goes on from there.

        A file that is damaged, or of another model or other options, is a warning, and 0; UsageError for any other.
        """
        from localinfer.engine import snapshot

        self._session.end()
        try:
            return snapshot.load(Path(path), self.engine, self.options)
        except UsageError:  # who writes there next would overwrite something else
            raise
        except LocalInferError as error:
            self.engine.require_open()
            warnings.warn(f"{error}; it is left aside", stacklevel=2)
            return 0

    def close(self) -> None:
        """End the threads and the template's process."""
        self._session.end()
        self.engine.close()
        if self._draft is not None:
            self._draft.close()
        if self._writer is not None:
            self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()

    def sampler(self, **options: object) -> Sampler:
        """The chain of samplers that these options describe: a function of logits and ids, as `generate` takes one."""
        return self._session.sampler(self._chosen(options))

    def _draft_file(self) -> GGUF | None:
        """The draft model, or the head in a file of its own, if the options name one; it knows the same tokens."""
        if not self.options.spec_draft_model:
            return None
        from localinfer.generation.speculation.pairing import require_chosen, require_same_tokens

        f = open_gguf(registry.find(self.options.spec_draft_model))
        require_chosen(f, self.options.spec_type)
        require_same_tokens(f, self.file)
        return f

    def _draft_engine(self, f: GGUF, progress: Progress | None) -> Engine:
        """The engine of the draft model."""
        from localinfer.generation.speculation.pairing import draft_engine

        try:
            return draft_engine(f, self.engine, self.options, progress)
        except BaseException:
            self.engine.close()
            raise

    def _prompts(self) -> "PromptWriter":
        from localinfer.prompt.writer import PromptWriter

        if self._writer is None:
            self._writer = PromptWriter(self.file, self.tokenizer)
        return self._writer

    def _run(self, prompt: list[int], options: Options, sampler: SamplerFunction | None, behind: Sequence[int] = (),
             begun: Sequence[int] = ()) -> Iterator[Piece]:
        """What comes after the tokens `behind` is held to the form that the options ask for, if they do."""
        self.file.check_unchanged()
        constraint = self._constraint(options, behind)
        self.stats, pieces = self._session.run(prompt, options, sampler, constraint, begun)
        return as_text(pieces, self.tokenizer) if options.reasoning_format == "none" else pieces

    def _with_calls(self, pieces: Iterator[Piece], template: str, conversation: "Conversation") -> Iterator[Piece]:
        from localinfer.generation import calls

        parser = calls.parser(template, self.tokenizer, conversation.tools, first=conversation.n_calls)
        return calls.told_apart(pieces, parser) if parser else pieces

    def _end_of_reasoning(self, prompt: "Prompt") -> list[int]:
        """The tokens that end the reasoning in which a prompt ends, if it does."""
        inside = prompt.text.rstrip().endswith("<think>")
        return self.tokenize("</think>", add_special=False, parse_special=True) if inside else []

    def _constraint(self, options: Options, behind: Sequence[int]) -> "Constraint | None":
        if not any(getattr(options, name) for name in FORMS):
            return None
        from localinfer.generation.constraint import Constraint, form_of

        form = form_of(options)
        return Constraint(form, self._vocabulary_of_forms(), behind)

    def _vocabulary_of_forms(self) -> "Vocabulary":
        from localinfer.generation.constraint import Vocabulary

        self._vocabulary = self._vocabulary or Vocabulary(self.tokenizer, self.n_vocab)
        return self._vocabulary

    def _chosen(self, given: Mapping[str, object]) -> Options:
        """The model's options with those of one run; `schema` is a JSON schema in any of Python's ways."""
        if "schema" in given:
            from localinfer.generation.constraint.json_schema import text_of

            schema = text_of(given["schema"])
            given = {name: value for name, value in given.items() if name != "schema"} | {"json_schema": schema}
        layer = from_keywords(given)
        for name in layer:
            if FLAGS[name].section in ("model", "draft"):
                raise UsageError(f"{name}: can only be chosen when the model is loaded")
        return merge(layer, asdict(self.options))

    def _checked(self, ids: Sequence[int]) -> list[int]:
        """Token ids as a list of Python's integers, each in the vocabulary."""
        try:
            tokens = [index(id) for id in ids]
        except TypeError:
            raise UsageError("tokens: must be a flat list of integers") from None
        wrong = next((id for id in tokens if not 0 <= id < self.n_vocab), None)
        if wrong is not None:
            raise UsageError(f"tokens: there is no token {wrong}, the vocabulary has {self.n_vocab}")
        return tokens


class Beside(Model):
    """What `Model.beside` makes: it shares with its model all but the runs."""

    def __init__(self, model: Model, lanes: "Lanes", draft_lanes: "Lanes | None") -> None:
        self._model, self._lane = model, lanes.lane()
        self._draft_lane = draft_lanes.lane() if draft_lanes else None
        self.file, self.options, self.tokenizer, self.engine = model.file, model.options, model.tokenizer, self._lane
        self.stats = Stats()
        self._session = Session(self._lane, self.tokenizer, model._progress, self._draft_lane)

    def close(self) -> None:
        """Ends its run, and forgets it; the model goes on."""
        self._session.end()
        self._lane.close()
        if self._draft_lane is not None:
            self._draft_lane.close()

    def _run(self, prompt: list[int], options: Options, sampler: SamplerFunction | None, behind: Sequence[int] = (),
             begun: Sequence[int] = ()) -> Iterator[Piece]:
        pieces = super()._run(prompt, options, sampler, behind, begun)

        def until_rest() -> Iterator[Piece]:
            try:
                yield from pieces
            finally:
                self._lane.rest()
                if self._draft_lane is not None:
                    self._draft_lane.rest()

        return until_rest()

    def _embeds(self) -> "Embedder":
        return self._model._embeds()

    def _prompts(self) -> "PromptWriter":
        return self._model._prompts()

    def _vocabulary_of_forms(self) -> "Vocabulary":
        return self._model._vocabulary_of_forms()


def without_a_guesser(options: Options) -> list[str]:
    """What there is to say where only a draft model may guess, and there is none."""
    alone = guessers_named(options.spec_type) == {"draft"} and not options.spec_draft_model
    return [f"--spec-type {options.spec_type}: no model guesses: --spec-draft-model names one"] if alone else []


def beyond_training(model: Model) -> list[str]:
    """What there is to say of a context that is longer than those that the model has seen."""
    if model.n_ctx <= model.n_ctx_train:
        return []
    return [f"--ctx-size {model.n_ctx}: trained on {model.n_ctx_train} tokens; beyond, text turns into nonsense"]

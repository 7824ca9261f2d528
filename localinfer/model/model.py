"""`Model`: a model that generates text and answers chats. It does no terminal output."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import UsageError
from localinfer.generation.pieces import Piece, Stats
from localinfer.generation.reasoning import find_tags, merge_reasoning
from localinfer.generation.result import GenerationStream
from localinfer.generation.sampling import SamplerChain
from localinfer.generation.token_selection import SamplerFunction, model_sampler
from localinfer.model.adapter_scales import AdapterScales
from localinfer.model.cache_files import CacheFiles
from localinfer.model.chat_prompts import ChatPrompts
from localinfer.model.text_generation import ChatKeywords, TextGeneration
from localinfer.model.tokenization import Tokenization
from localinfer.model.views import Views
from localinfer.options import CONSTRAINT_OPTIONS, Options
from localinfer.options.keywords import RunKeywords

if TYPE_CHECKING:  # `generate` needs neither chat templates nor constraints
    from localinfer.chat_template.conversation import Message
    from localinfer.chat_template.prompt import Prompt
    from localinfer.generation.structured.constraint import Constraint
    from localinfer.generation.tool_calls.fenced_calls import FencedCallRules
    from localinfer.generation.tool_calls.tool_call import Tool
    from localinfer.model.chat_request import ChatRequest


class Model(TextGeneration, ChatPrompts, AdapterScales, CacheFiles, Views, Tokenization):
    """A loaded model. `options` are the defaults of every run.

    Only one run is active at a time: starting another one ends the previous one. Methods may be called from several
    threads, which take turns after each token. After `close`, methods that compute raise LocalInferError.
    """

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

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Return the logits after each of these tokens: float32 (len(ids), n_vocab). Those of a diffusion language
        model are computed from the whole text. For an encoder-decoder model, the encoder's tokens come first, as ~id,
        and have no logits."""
        return self._session.logits(self._check_ids(ids, media=True))

    def stream(
        self, prompt: str | Sequence[int], *, media: Sequence[object] = (), sampler: SamplerFunction | None = None,
        **options: Unpack[RunKeywords],
    ) -> GenerationStream:  # fmt: skip
        """Continue a text or token ids, and yield the output in pieces. `options` override the model's options for this
        run.

        `media` are images and sounds (paths, bytes, data: URLs, arrays), in the order of the markers <__media__> in the
        text; without markers, they come before it.

        `sampler` replaces the sampler chain of the options. It is called with the logits, float32 (n_vocab,), and the
        list of the ids of prompt and output so far, and returns the id of the next token. The additional option
        `schema` is a JSON schema that the output must match: a dict, a JSON text or a pydantic model.

        Raises immediately: UsageError, UnsupportedError for media that the model cannot read, ConstraintError for an
        invalid schema or grammar, ContextOverflowError for a prompt that is too long, LocalInferError for a file that
        has changed. Raises after the last piece: ContextOverflowError if the context is full, IncompleteOutputError if
        the output does not satisfy its constraint.
        """
        self.engine.compiled_graph.require_output_layer()
        run_options = self._run_options(options)
        tokens = self._prompt_ids(prompt, media)
        return self._run(tokens, run_options, sampler)

    def score(self, prompt: str | Sequence[int], ids: Sequence[int], *, logprobs: int = 1) -> list[Piece]:
        """Evaluate a given output `ids` behind a prompt, and return its pieces as if they had been generated.

        Each piece has its probability and `logprobs` alternatives. Ends the current run. Raises the same errors as
        `stream` does immediately.
        """
        tokens = self.tokenize(prompt) if isinstance(prompt, str) else self._check_ids(prompt, media=True)
        if not tokens or not ids:
            raise UsageError("prompt and ids: at least one token each is required")
        self.file.check_unchanged()
        return self._session.score(tokens, self._check_ids(ids), logprobs)

    def stream_chat(self, messages: Sequence["Message"], **keywords: Unpack[ChatKeywords]) -> GenerationStream:
        """Answer a conversation of messages {"role": ..., "content": ...}, and yield the answer in pieces.

        A content may be a list of parts: {"type": "text", "text": ...}, {"type": "image", "image": ...} and {"type":
        "audio", "audio": ...}, with a path, bytes, a data: URL or an array, and those of OpenAI's API. `media_access`
        limits the files and addresses that messages may name; by default, they may name any file.

        The prompt is what `render` returns for the same `tools`, `documents`, `template_kwargs`,
        `continue_final_message` and `parse_special`. The answer begins with the tokens `prefix_ids`, which are its
        first pieces. An assistant message may contain `ids`, the token ids of the pieces of an earlier answer: the
        prompt repeats exactly these tokens, so that the KV cache of the conversation stays valid.

        With `tools` (JSON schemas of functions), pieces carry parsed tool calls in `calls`, whose arguments match the
        schemas. `tool_choice` is "auto", "none", "required", the name of the tool to call, or an object of OpenAI's
        API: {"type": "function", ...}, also for a tool named "auto", or {"type": "allowed_tools", ...}.
        `parallel_tool_calls` allows several calls. With `stream_arguments`, pieces carry the JSON text of arguments in
        `call_parts`, too, where a grammar makes sure that it is valid. To continue, append the assistant message with
        its `tool_calls`, and one message with the role "tool" for each result.

        For options, `sampler` and errors see `stream`.
        """
        from localinfer.model.chat_request import ChatRequest

        self.engine.runner.require_open()
        self.engine.compiled_graph.require_output_layer()
        rest = keywords.copy()
        access = rest.pop("media_access", None)
        messages = self._encode_messages(messages, access, self.engine.prompt_media.begin())
        return self._answer(ChatRequest.from_keywords(messages, rest))

    def _answer(self, request: "ChatRequest") -> GenerationStream:
        from localinfer.generation.tool_calls import answer_parser, parse_pieces

        run_options, tools, sampler = self._run_options(request.options), request.conversation.tools, request.sampler
        prompt_builder = self._resources.prompt_builder()
        prompt = prompt_builder.build(
            request.conversation, run_options, parse_special=request.parse_special, on_wait=self._report_prompt)
        template = prompt_builder.template(run_options, with_tools=tools is not None).source
        prefix = self._check_ids(request.prefix_ids)
        is_constrained = bool(tools) and not has_constraint(run_options) and run_options.beams == 1
        if tools and not is_constrained and request.tool_choice.mode != "auto":
            raise UsageError(f"tool_choice: {request.tool_choice} excludes other constraints and beams")
        if tools and is_constrained:
            constraint = self._call_constraint(request, template, prompt)
        else:
            constraint = self._constraint(run_options, self._reasoning_end(prompt, template))
        stats, pieces = self._start(prompt.ids, run_options, sampler, constraint, prefix)
        allowed = request.tool_choice.allowed(tools) if tools else []
        parser = answer_parser(
            template, self.tokenizer, allowed, prompt=prompt.text,
            with_reasoning=run_options.reasoning_format != "none", first_number=request.conversation.n_tool_calls,
            streams_arguments=request.stream_arguments and is_constrained and sampler is None,
            fenced_calls=self._fenced_call_rules(request, allowed) if allowed else None)
        return GenerationStream(parse_pieces(pieces, parser), stats, closing_function(constraint), prompt.ids)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()

    def sampler(self, **options: Unpack[RunKeywords]) -> SamplerChain:
        """Return the sampler chain that the options describe, which can be passed to `generate`."""
        return model_sampler(self._run_options(options), self.engine, self.tokenizer)

    def _prompt_ids(self, prompt: str | Sequence[int], media: Sequence[object]) -> list[int]:
        if isinstance(prompt, str):
            return self.tokenize(prompt, media=media, on_wait=self._report_prompt)
        if media:
            raise UsageError("media: requires a text as the prompt")
        return self._check_ids(prompt, media=True)

    def _run(self, prompt: list[int], options: Options, sampler: SamplerFunction | None) -> GenerationStream:
        constraint = self._constraint(options)
        stats, pieces = self._start(prompt, options, sampler, constraint)
        if options.reasoning_format == "none":
            pieces = merge_reasoning(pieces, self.tokenizer)
        return GenerationStream(pieces, stats, closing_function(constraint), prompt)

    def _start(self, prompt: list[int], options: Options, sampler: SamplerFunction | None,
               constraint: "Constraint | None", prefix_ids: Sequence[int] = ()) -> tuple[Stats, Iterator[Piece]]:
        try:
            self.file.check_unchanged()
            return self._session.run(prompt, options, sampler, constraint, prefix_ids)
        except BaseException:
            closing_function(constraint)()
            raise

    def _reasoning_end(self, prompt: "Prompt", template: str) -> str:
        """Return the tag that ends the reasoning if the prompt ends inside of it, otherwise ""."""
        tags = find_tags(template, self.tokenizer)
        return tags.closing if tags and tags.are_open(prompt.text) else ""

    def _constraint(self, options: Options, start_after: str = "") -> "Constraint | None":
        """Return the constraint that the options select. It applies to the text after `start_after`."""
        if not has_constraint(options):
            return None
        from localinfer.generation.structured.constraint import Constraint
        from localinfer.generation.structured.constraint_source import constraint_source
        from localinfer.generation.structured.constraint_start import AfterMarker

        start, vocabulary = AfterMarker(start_after) if start_after else None, self._resources.constraint_vocabulary()
        return Constraint(constraint_source(options), vocabulary, start, on_wait=self._report_constraint)

    def _call_constraint(self, request: "ChatRequest", template: str, prompt: "Prompt") -> "Constraint | None":
        from localinfer.generation.tool_calls.call_constraint import call_constraint

        return call_constraint(
            template, self.tokenizer, self._resources.constraint_vocabulary(), request.conversation.tools or (),
            request.tool_choice, is_parallel=request.parallel_tool_calls, prompt=prompt.text,
            on_wait=self._report_constraint)

    def _fenced_call_rules(self, request: "ChatRequest", tools: "Sequence[Tool]") -> "FencedCallRules":
        from localinfer.generation.tool_calls.call_constraint import fenced_call_rules

        return fenced_call_rules(
            tools, self._resources.constraint_vocabulary, is_parallel=request.parallel_tool_calls,
            on_wait=self._report_constraint)

    def _report_constraint(self) -> None:
        """Report that a constraint is being computed. The progress function may raise, which stops that."""
        if progress := self._session.progress:
            progress("constraint", 0, 0)


def has_constraint(options: Options) -> bool:
    return any(getattr(options, name) for name in CONSTRAINT_OPTIONS)


def closing_function(constraint: "Constraint | None") -> Callable[[], None]:
    """Return a function that releases the worker of a constraint, if there is one."""
    return constraint.close if constraint else lambda: None

"""A lease: a slot and a model that are reserved for one request, and what the request generates with them."""

import asyncio
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar, cast

from localinfer.errors import ContextOverflowError, IncompleteOutputError
from localinfer.multimodal.access import INLINE_ONLY, MediaAccess
from localinfer.server.http.api_errors import CONSTRAINT_ERRORS, APIError, to_api_error
from localinfer.server.prompt_history import PromptHistory, client_name
from localinfer.server.requests.answer_memory import AnswerMemory
from localinfer.server.requests.prefill_reports import PrefillReport, PrefillReports
from localinfer.server.requests.prompts import ChatPrompt, Options, Prompt
from localinfer.server.requests.request_fields import TEXT_BIASES
from localinfer.server.slots import Slot, SlotStopped

if TYPE_CHECKING:
    from localinfer.generation.pieces import Piece, Stats
    from localinfer.generation.result import GenerationStream
    from localinfer.model import Model

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Generation:
    """A running generation. `events` are its pieces and, before them, the reports of its prefill. `stats` are complete
    after the last one.
    """

    stats: "Stats"
    events: "AsyncGenerator[Piece | PrefillReport, None]"

    @property
    def pieces(self) -> "AsyncGenerator[Piece, None]":
        """The pieces of a generation without reports of its prefill."""
        return cast("AsyncGenerator[Piece, None]", self.events)

    @property
    def finish_reason(self) -> Literal["stop", "length"]:
        """The finish reason in OpenAI's terms."""
        return "stop" if self.stats.finish_reason == "stop" else "length"

    def chat_finish_reason(self, *, has_calls: bool) -> Literal["stop", "length", "tool_calls"]:
        """The finish reason of a chat. Calls that were closed at the limit of tokens have the reason `length`."""
        return "tool_calls" if has_calls and not self.stats.closed_at_limit else self.finish_reason


class Observer(Protocol):
    """Callbacks that collect statistics; see `metrics.Metrics`."""

    def on_slot_acquired(self, seconds: float) -> None:
        """Record that a request waited this long for a slot."""

    def on_generation_end(self, stats: "Stats", time_to_first_token: float) -> None:
        """Record a finished generation. `time_to_first_token` is in seconds from the request's arrival; 0 without any
        token."""

    def on_prompts_embedded(self, tokens: int, seconds: float) -> None:
        """Record that so many tokens were evaluated for embeddings."""


@dataclass(slots=True)
class Lease:
    """A slot and a model that are reserved for one request.

    `arrival` is in seconds of `perf_counter`, `deadline` in seconds of the event loop's clock. With `prompts`, the log
    and the slot say where a prompt diverges from an earlier one. With `answers`, chats repeat the token ids of earlier
    answers. `access` limits the files and addresses that messages may name as images and sounds.
    """

    slot: Slot
    model: "Model"
    name: str
    deadline: float
    arrival: float
    observer: Observer | None = None
    prompts: PromptHistory | None = None
    answers: AnswerMemory | None = None
    access: MediaAccess = INLINE_ONLY

    @asynccontextmanager
    async def generate(
        self, prompt: Prompt, options: Options, *, reports_prefill: bool = False
    ) -> AsyncIterator[Generation]:
        """Start a generation. It stops when the block ends, or at the deadline with the finish reason `length`.

        Errors of a constraint name the field of the request.
        """
        first_token_timer, client = FirstTokenTimer(self.arrival), client_name.get()
        try:
            generation = await self.call(lambda: self._begin(prompt, options, client))
        except CONSTRAINT_ERRORS as error:
            raise to_api_error(error, prompt.field_of) from None
        timer = asyncio.get_running_loop().call_at(self.deadline, self.slot.stop)
        try:
            pieces: Iterator[Piece | PrefillReport] = first_token_timer.watch(self._remembering(generation, prompt))
            reports = PrefillReports(generation.stats) if reports_prefill else None
            async with aclosing(self.slot.iterate(pieces, reports)) as stream:
                yield Generation(generation.stats, stream)
        except CONSTRAINT_ERRORS as error:
            raise to_api_error(error, prompt.field_of) from None
        finally:
            timer.cancel()
            await self.slot.call(generation.close)  # its constraint may never have started
            if self.observer:
                self.observer.on_generation_end(generation.stats, first_token_timer.time_to_first_token)

    async def call(self, work: Callable[[], T]) -> T:
        """Run work in the slot's thread. Raises APIError (503) if it is stopped at the deadline."""
        timer = asyncio.get_running_loop().call_at(self.deadline, self.slot.stop)
        try:
            return await self.slot.call(work)
        except SlotStopped:
            raise APIError(503, "the request took too long before its first token", code="timeout") from None
        finally:
            timer.cancel()

    def _begin(self, prompt: Prompt, options: Options, client: str) -> "GenerationStream":
        """Start a generation. Raises SlotStopped if the slot was stopped meanwhile."""
        if isinstance(prompt, ChatPrompt):
            prompt = replace(prompt, access=self.access)
        if self.answers and isinstance(prompt, ChatPrompt):
            prompt = replace(prompt, messages=self.answers.with_token_ids(self.name, prompt.messages))
        generation = prompt.begin(self.model, with_token_biases(options, self.model))
        if self.slot.is_stopped:
            generation.close()
            raise SlotStopped
        if self.prompts:
            self._report_divergence(self.prompts, generation.prompt_ids, client)
        return generation

    def _remembering(self, generation: "GenerationStream", prompt: Prompt) -> "Iterator[Piece]":
        """Yield the pieces of a generation, and add a complete answer to the memory of the server."""
        from localinfer.generation.result import GenerationResult

        if not self.answers or not isinstance(prompt, ChatPrompt) or prompt.continue_final_message:
            yield from generation
            return
        pieces = []
        for piece in generation:
            pieces.append(piece)
            yield piece
        answer = GenerationResult.from_pieces(pieces, generation.stats).as_message()
        self.answers.add(self.name, prompt.messages, answer)

    def _report_divergence(self, prompts: PromptHistory, ids: Sequence[int], client: str) -> None:
        """Say in the log and in the slot where the prompt diverges from an earlier one."""
        divergence = prompts.add(self.name, ids, client)
        decode = partial(self.model.detokenize, special=True)
        self.slot.divergence = divergence.as_fields(decode) if divergence else None
        if divergence:
            warnings.warn(divergence.describe(decode), stacklevel=2)


def with_token_biases(options: Options, model: "Model") -> Options:
    """Return options in which each bias of a text is a bias of the text's tokens."""
    if TEXT_BIASES not in options:
        return options
    biases = list(options.get("logit_bias", ()))
    for text, bias in options[TEXT_BIASES]:
        biases += (f"{id}{bias:+}" for id in model.tokenize(text, add_special=False))
    rest = {name: value for name, value in options.items() if name != TEXT_BIASES}
    return rest | {"logit_bias": tuple(biases)}


class FirstTokenTimer:
    """Measures the time from a request's arrival to its first piece."""

    def __init__(self, arrival: float) -> None:
        self.arrival = arrival
        self.time_to_first_token = 0.0

    def watch(self, pieces: "Iterator[Piece]") -> "Iterator[Piece]":
        """Yield all pieces and note the time of the first.

        A generation that overflows the context or stays incomplete ends normally; `stats.finish_reason` reports it.
        """
        with suppress(ContextOverflowError, IncompleteOutputError):
            for piece in pieces:
                self.time_to_first_token = perf_counter() - self.arrival
                yield piece
                break
            yield from pieces

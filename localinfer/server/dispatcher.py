"""The dispatcher: gives each request a slot and a model, and streams the generated pieces to the caller.

    async with dispatcher.lease("smollm2") as lease:
        async with lease.generate(ChatPrompt(messages), {"temp": 0.0}) as generation:
            async for piece in generation.pieces: ...
        generation.finish_reason, generation.stats

This module does not depend on HTTP. All API endpoints and `localinfer.batch` use it.
"""

import asyncio
import threading
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    aclosing,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, cast

from localinfer.errors import ContextOverflowError, IncompleteOutputError, UsageError
from localinfer.server.answer_memory import AnswerMemory
from localinfer.server.api_errors import CONSTRAINT_ERRORS, APIError, to_api_error
from localinfer.server.idle_timers import IdleTimers
from localinfer.server.model_cache import ModelCache, ServedModel
from localinfer.server.model_query import autoload, requested_model
from localinfer.server.model_queue import ModelQueue
from localinfer.server.prefill_reports import PrefillReport, PrefillReports
from localinfer.server.prompt_history import PromptHistory, client_name
from localinfer.server.request_fields import TEXT_BIASES
from localinfer.server.settings import Settings
from localinfer.server.slots import Slot, SlotPool, SlotStopped, stop_prompt_if_cancelled
from localinfer.server.tool_fields import ToolFields

if TYPE_CHECKING:
    from localinfer.chat_template.prompt import Prompt as RenderedPrompt
    from localinfer.generation.pieces import Piece, Stats
    from localinfer.generation.result import GenerationStream
    from localinfer.model import Model

MAX_PROMPT_CHARS = 4 << 20  # messages have the limit of the chat template
T = TypeVar("T")
Message = Mapping[str, object]
Options = Mapping[str, Any]  # fields of `localinfer.options.Options`, already validated


class Prompt(Protocol):
    """The input of a generation."""

    @property
    def field_of(self) -> Mapping[str, str]:
        """The field of the request for each name by which errors call a constraint."""

    def begin(self, model: "Model", options: Options) -> "GenerationStream":
        """Start the generation. Raises what `Model.generate` or `Model.chat` raises, before the first piece."""


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A text to continue, or its token ids. With `parse_special`, the texts of control tokens become these tokens.
    `field_of` is what `to_api_error` needs.
    """

    prompt: str | Sequence[int]
    parse_special: bool = False
    field_of: Mapping[str, str] = field(default_factory=dict)

    def begin(self, model: "Model", options: Options) -> "GenerationStream":
        if isinstance(self.prompt, str) and len(self.prompt) > MAX_PROMPT_CHARS:
            raise UsageError(f"prompt: {len(self.prompt)} characters (limit {MAX_PROMPT_CHARS})")
        if isinstance(self.prompt, str) and self.parse_special:
            ids = model.tokenize(self.prompt, parse_special=True, on_wait=stop_prompt_if_cancelled)
            return model.stream(ids, **options)
        return model.stream(self.prompt, **options)


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A list of messages and their chat template options, as `Model.chat` accepts them. `field_of` is what
    `to_api_error` needs.
    """

    messages: Sequence[Message]
    tools: ToolFields = field(default_factory=ToolFields)
    template_kwargs: Mapping[str, object] = field(default_factory=dict)
    continue_final_message: bool = False
    add_generation_prompt: bool = True
    field_of: Mapping[str, str] = field(default_factory=dict)

    def begin(self, model: "Model", options: Options) -> "GenerationStream":
        return model.stream_chat(
            self.messages, template_kwargs=self.template_kwargs,
            continue_final_message=self.continue_final_message, add_generation_prompt=self.add_generation_prompt,
            **self.tools.keywords, **options)  # fmt: skip

    def render(self, model: "Model", options: Options) -> "RenderedPrompt":
        """Return the prompt that `begin` evaluates."""
        return model.render(
            self.messages, tools=self.tools.tools, template_kwargs=self.template_kwargs,
            continue_final_message=self.continue_final_message, add_generation_prompt=self.add_generation_prompt,
            **options)  # fmt: skip


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
    answers.
    """

    slot: Slot
    model: "Model"
    name: str
    deadline: float
    arrival: float
    observer: Observer | None = None
    prompts: PromptHistory | None = None
    answers: AnswerMemory | None = None

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


def stop_running(used: "Sequence[tuple[Slot, Model | None]]") -> None:
    """Stop the slots that still use these models."""
    for slot, model in used:
        if slot.model is model:
            slot.stop()


class Dispatcher:
    """Assigns slots and models to requests.

    Requests for the same model run concurrently, up to the number of slots and the model's `parallel` option.
    """

    def __init__(self, model_cache: ModelCache, settings: Settings) -> None:
        self.model_cache = model_cache
        self.settings = settings
        self.models = ModelQueue(model_cache, settings.models_max, settings.models_memory)
        self.slots = SlotPool(settings.parallel, settings.queue)
        self.observer: Observer | None = None
        self.prompts: PromptHistory | None = None
        self.answers: AnswerMemory | None = None
        self._background = ThreadPoolExecutor(1, "background")
        self._released = asyncio.Event()  # set when a slot stops using its model
        self.properties: dict[str, dict[str, Any]] = {}  # of models by name, as `/props` returns them
        self.describe: Callable[[ServedModel, Model, Dispatcher], object] | None = None  # fills `properties`
        self.idle_timers = IdleTimers(self.models, settings.sleep_idle_seconds)
        self.unload_times = self.idle_timers.unload_times  # when each idle model will be unloaded
        self._turns: dict[tuple[str, int], asyncio.Semaphore] = {}  # of models with fewer sequences than slots

    @asynccontextmanager
    async def lease(self, name: str | None, slot_number: int = -1) -> AsyncIterator[Lease]:
        """Wait for the model, which is loaded if needed, then for a free slot. The slot is the one with this number if
        it is free.

        Raises APIError if the queue is full, the wait exceeds `settings.timeout`, or the model is unknown or must not
        be loaded, and whatever loading raises.
        """
        arrival = perf_counter()
        deadline = asyncio.get_running_loop().time() + self.settings.timeout
        async with (
            self.using(name) as (served, model), self._turn(served.name, model.parallel),
            self.slots.acquire(self.settings.timeout, slot_number) as slot,
        ):  # fmt: skip
            while self._n_busy(served.name) >= model.parallel:  # further choices of a request take no turns
                await self._wait_for_release()
            if self.observer:
                self.observer.on_slot_acquired(perf_counter() - arrival)
            with self._in_use(model.concurrent(slot.number) if model.parallel > 1 else model, slot, served.name) as own:
                yield Lease(slot, own, served.name, deadline, arrival, self.observer, self.prompts, self.answers)

    @asynccontextmanager
    async def using(self, name: str | None) -> "AsyncIterator[tuple[ServedModel, Model]]":
        """Wait for a model, which is loaded if needed. Within the context, nothing unloads it. It is for operations
        without evaluation, such as tokenizing; `lease` gives a slot to evaluate tokens in.

        Raises what `lease` raises.
        """
        served = self.model_cache.resolve(name or requested_model.get())
        self._require_admission(served)
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(self.settings.timeout):
                    model = await stack.enter_async_context(self.models.use(served))
            except TimeoutError:
                problem = f"the model was not loaded within {self.settings.timeout:.0f} s"
                raise APIError(503, problem, code="busy") from None
            model.engine.compiled_graph.add_idle_work(self.slots.bridge.pending, self.slots.bridge.wake)
            self.idle_timers.cancel(served.name)
            if self.describe and served.name not in self.properties:
                self.describe(served, model, self)
            try:
                yield served, model
            finally:
                self.idle_timers.sleep_when_idle(served)

    def _require_admission(self, served: ServedModel) -> None:
        """Raise APIError unless the request may use the model: one that is not loaded may need permission to be."""
        status = self.models.status(served)
        may_load = self.settings.models_autoload if (wish := autoload.get()) is None else wish
        if status == "unloaded" and not may_load and not self.model_cache.catalog.is_single:
            raise APIError(400, "model is not loaded", "model")
        if status != "loaded" and self.models.n_waiting > self.settings.queue:
            n_waiting = self.models.n_waiting
            raise APIError(503, f"the server is busy and its queue is full ({n_waiting} requests)", code="busy")

    def _turn(self, name: str, n_sequences: int) -> AbstractAsyncContextManager[None]:
        """Return a context in which at most so many requests use the model at a time."""
        if n_sequences >= len(self.slots.all):
            return nullcontext()
        return self._turns.setdefault((name, n_sequences), asyncio.Semaphore(n_sequences))

    def can_lease_another(self, lease: Lease) -> bool:
        """Return whether a further slot and a further sequence of the lease's model are free and no other request
        waits.
        """
        is_contended = self.models.n_waiting or not self.slots.has_free_slot
        return not is_contended and self._n_busy(lease.name) < lease.model.parallel

    @asynccontextmanager
    async def lease_another(self, lease: Lease) -> AsyncIterator[Lease]:
        """Lease a further slot with the same model for the same request.

        Returns without waiting if `can_lease_another` is true.
        """
        async with self.slots.acquire(self.settings.timeout) as slot:
            concurrent = self.model_cache.loaded[lease.name].concurrent(slot.number)
            with self._in_use(concurrent, slot, lease.name) as model:
                yield replace(lease, slot=slot, model=model)

    @contextmanager
    def _in_use(self, model: "Model", slot: Slot, name: str) -> "Iterator[Model]":
        slot.model, slot.model_name = model, name
        try:
            yield model
        finally:
            slot.model, slot.model_name = None, ""
            self._released.set()

    @property
    def n_waiting(self) -> int:
        """The number of requests that wait for a slot or for their model."""
        return self.slots.n_waiting + self.models.n_waiting

    def _n_busy(self, name: str) -> int:
        """Return the number of slots that use a model."""
        return sum(slot.model_name == name for slot in self.slots.all)

    async def _wait_for_release(self) -> None:
        self._released.clear()
        await self._released.wait()

    def load(self, served: ServedModel) -> None:
        """Begin to load a model, without waiting."""

        async def load() -> None:
            async with self.models.use(served):
                self.idle_timers.sleep_when_idle(served)

        self.models.begin(load())

    async def unload(self, lease: Lease) -> None:
        """Unload the lease's model when this request and those that already use it have ended."""
        self.models.unload(self.models.states.known(lease.name))

    def request_unload(self, served: ServedModel) -> None:
        """Begin to unload a model, after its answers have ended; those that take longer than its `stop_timeout` are
        cut off."""
        self.idle_timers.cancel(served.name)
        self.models.unload(served)
        if served.stop_timeout is not None:
            running = [(slot, slot.model) for slot in self.slots.all if slot.model_name == served.name]
            asyncio.get_running_loop().call_later(served.stop_timeout, stop_running, running)

    @asynccontextmanager
    async def unloaded(self, name: str) -> AsyncIterator[None]:
        """Unload a model, once no request uses it. Within the context, no model is loaded."""
        async with self.models.without(self.models.states.known(name)):
            self.idle_timers.cancel(name)
            yield

    def keep_alive(self, name: str, seconds: float | None) -> None:
        """Unload a model once it is idle for so many seconds; None keeps it until another model needs its memory."""
        self.idle_timers.keep_alive(self.models.states.known(name), seconds)

    async def find_model(self, name: str | None) -> "tuple[ServedModel, Model]":
        """Return the model, which is loaded if needed. This is no use of a loaded model, which `using` is: nothing
        keeps it loaded, and it sleeps as if nobody had asked.
        """
        served = self.model_cache.resolve(name or requested_model.get())
        if model := self.model_cache.loaded.get(served.name):
            return served, model
        async with self.using(served.name) as (served, model):
            return served, model

    async def run_in_background(self, work: Callable[[Callable[[], None]], T]) -> T:
        """Run work without evaluation in a thread, one at a time, so that its memory is bounded.

        `work` receives a function, which it calls often: that raises if the request has ended. Raises APIError (503) if
        the work takes longer than `settings.timeout`.
        """
        is_stopped = threading.Event()

        def stop_if_ended() -> None:
            if is_stopped.is_set():
                raise SlotStopped

        def work_unless_ended() -> T:
            stop_if_ended()
            return work(stop_if_ended)

        done = asyncio.get_running_loop().run_in_executor(self._background, work_unless_ended)
        try:
            async with asyncio.timeout(self.settings.timeout):
                return await asyncio.shield(done)
        except TimeoutError:
            raise APIError(503, "the request took too long", code="timeout") from None
        finally:
            is_stopped.set()
            done.add_done_callback(lambda each: each.cancelled() or each.exception())  # it has been retrieved

    def close(self) -> None:
        self._background.shutdown(wait=False, cancel_futures=True)
        self.models.close()
        self.slots.close()
        self.model_cache.close()

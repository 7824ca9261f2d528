"""The methods that generate text: results, streams, lists of prompts and coroutines, all made of two streams.

`Model` implements `stream` and `stream_chat`.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar, Unpack, cast, overload

from localinfer.generation.pieces import Piece
from localinfer.generation.result import GenerationResult, GenerationStream
from localinfer.model.base import ModelBase
from localinfer.options.keywords import RunKeywords

if TYPE_CHECKING:
    from localinfer.chat_template.conversation import Message
    from localinfer.generation.token_selection import SamplerFunction
    from localinfer.generation.tool_calls.tool_choice import ToolChoice
    from localinfer.multimodal.access import MediaAccess

T = TypeVar("T")


class ChatKeywords(RunKeywords, total=False):
    """What a chat accepts beside its messages: see `Model.stream_chat`."""

    tools: Sequence[Mapping[str, object]] | None
    documents: Sequence[Mapping[str, object]] | None
    template_kwargs: Mapping[str, object] | None
    add_generation_prompt: bool
    continue_final_message: bool
    parse_special: bool
    sampler: "SamplerFunction | None"
    prefix_ids: Sequence[int]
    tool_choice: "str | Mapping[str, object] | ToolChoice"
    parallel_tool_calls: bool
    stream_arguments: bool
    media_access: "MediaAccess | None"


class TextGeneration(ModelBase, ABC):
    """Generate text from prompts, and answers from conversations."""

    @abstractmethod
    def concurrent(self, slot: int) -> "TextGeneration":
        """Return a handle for the scheduler slot `slot`: see `Model.concurrent`."""

    @abstractmethod
    def stream(
        self, prompt: str | Sequence[int], *, media: Sequence[object] = (), sampler: "SamplerFunction | None" = None,
        **options: Unpack[RunKeywords],
    ) -> GenerationStream:  # fmt: skip
        """Continue a text or token ids, and yield the output in pieces."""

    @abstractmethod
    def stream_chat(self, messages: Sequence["Message"], **keywords: Unpack[ChatKeywords]) -> GenerationStream:
        """Answer a conversation, and yield the answer in pieces."""

    @overload
    def generate(
        self, prompt: str | Sequence[int], *, media: Sequence[object] = (), sampler: "SamplerFunction | None" = None,
        **options: Unpack[RunKeywords],
    ) -> GenerationResult: ...  # fmt: skip

    @overload
    def generate(
        self, prompt: list[str] | list[list[int]], *, sampler: "SamplerFunction | None" = None,
        **options: Unpack[RunKeywords],
    ) -> list[GenerationResult]: ...  # fmt: skip

    def generate(
        self, prompt: str | Sequence[int] | list[str] | list[list[int]], *, media: Sequence[object] = (),
        sampler: "SamplerFunction | None" = None, **options: Unpack[RunKeywords],
    ) -> GenerationResult | list[GenerationResult]:  # fmt: skip
        """Continue a text or token ids, and return the result.

        A list of prompts gives a list of results, in the same order; all of them have the same `media`. If the model
        was loaded with `parallel`, that many prompts are evaluated together (continuous batching). For options and
        errors see `Model.stream`.
        """

        def run(model: TextGeneration, one: str | Sequence[int]) -> GenerationResult:
            return model.stream(one, media=media, sampler=sampler, **options).result()

        if isinstance(prompt, str) or all(not isinstance(each, str | Sequence) for each in prompt):
            return run(self, cast("str | Sequence[int]", prompt))
        return self._run_all(run, cast("list[str | Sequence[int]]", prompt))

    @overload
    def chat(self, messages: Sequence["Message"], **keywords: Unpack[ChatKeywords]) -> GenerationResult: ...

    @overload
    def chat(
        self, messages: list[list["Message"]], **keywords: Unpack[ChatKeywords]
    ) -> list[GenerationResult]: ...

    def chat(
        self, messages: Sequence["Message"] | list[list["Message"]], **keywords: Unpack[ChatKeywords]
    ) -> GenerationResult | list[GenerationResult]:
        """Answer a conversation of messages {"role": ..., "content": ...}, and return the result.

        A list of conversations gives a list of results, as with `generate`. For keywords and errors see
        `Model.stream_chat`.
        """

        def run(model: TextGeneration, one: Sequence["Message"]) -> GenerationResult:
            return model.stream_chat(one, **keywords).result()

        if messages and all(isinstance(each, list | tuple) for each in messages):
            return self._run_all(run, cast('list[Sequence["Message"]]', messages))
        return run(self, cast('Sequence["Message"]', messages))

    async def agenerate(
        self, prompt: str | Sequence[int], *, media: Sequence[object] = (), sampler: "SamplerFunction | None" = None,
        **options: Unpack[RunKeywords],
    ) -> GenerationResult:  # fmt: skip
        """Do what `generate` does in a thread, without blocking the event loop."""
        import asyncio

        return await asyncio.to_thread(lambda: self.stream(prompt, media=media, sampler=sampler, **options).result())

    async def achat(self, messages: Sequence["Message"], **keywords: Unpack[ChatKeywords]) -> GenerationResult:
        """Do what `chat` does in a thread, without blocking the event loop."""
        import asyncio

        return await asyncio.to_thread(lambda: self.stream_chat(messages, **keywords).result())

    async def astream(
        self, prompt: str | Sequence[int], *, media: Sequence[object] = (), sampler: "SamplerFunction | None" = None,
        **options: Unpack[RunKeywords],
    ) -> AsyncIterator[Piece]:  # fmt: skip
        """Yield what `stream` yields, without blocking the event loop."""
        async for piece in iterate_in_thread(lambda: self.stream(prompt, media=media, sampler=sampler, **options)):
            yield piece

    async def astream_chat(
        self, messages: Sequence["Message"], **keywords: Unpack[ChatKeywords]
    ) -> AsyncIterator[Piece]:
        """Yield what `stream_chat` yields, without blocking the event loop."""
        async for piece in iterate_in_thread(lambda: self.stream_chat(messages, **keywords)):
            yield piece

    def _run_all(
        self, run: Callable[["TextGeneration", T], GenerationResult], inputs: Sequence[T]
    ) -> list[GenerationResult]:
        """Run all inputs, as many at a time as there are slots, and return the results in the order of the inputs. With
        hooks, which belong to this model's sequence, run one after another."""
        n_slots = 1 if self.engine.sequence.modifiers.hooks else min(self.parallel, len(inputs))
        if n_slots <= 1:
            return [run(self, each) for each in inputs]
        from concurrent.futures import ThreadPoolExecutor
        from queue import SimpleQueue

        free: SimpleQueue[int] = SimpleQueue()
        for slot in range(n_slots):
            free.put(slot)

        def run_in_slot(one: T) -> GenerationResult:
            slot = free.get()
            try:
                return run(self.concurrent(slot), one)
            finally:
                free.put(slot)

        with ThreadPoolExecutor(n_slots) as threads:
            return list(threads.map(run_in_slot, inputs))


async def iterate_in_thread(start: Callable[[], GenerationStream]) -> AsyncIterator[Piece]:
    """Yield the pieces of a stream that a thread starts and advances; closing the iterator ends the run."""
    import asyncio

    stream = await asyncio.to_thread(start)
    try:
        while (piece := await asyncio.to_thread(next, stream, None)) is not None:
            yield piece
    finally:
        stream.close()

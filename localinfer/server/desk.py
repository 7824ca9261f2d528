"""Where all ways of asking come together: a request gets a slot and a model, and its answer comes out piece by piece.

    async with desk.seat("smollm2") as seat:
        async with seat.run(Talk(messages), {"temp": 0.0}) as run:
            async for piece in run.pieces: ...
        run.finish_reason, run.stats

Knows nothing of HTTP.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, Protocol

from localinfer.errors import ContextOverflow, Incomplete
from localinfer.server.problems import Problem
from localinfer.server.settings import Settings
from localinfer.server.shelf import Offered, Shelf
from localinfer.server.slots import Slot, Slots

if TYPE_CHECKING:
    from localinfer.generation.pieces import Piece, Stats
    from localinfer.model import Model

AGAIN = 1.0  # second until it is tried again to let go of a model
LONGEST = 1e8  # seconds that a model may be kept, some years; for longer is for ever
Message = Mapping[str, object]
Options = Mapping[str, Any]  # by the names of `localinfer.options.Options`, checked


class Asked(Protocol):
    """What a model is to go on with."""

    def begin(self, model: "Model", options: Options) -> "Iterator[Piece]":
        """Raises as the model does, at once."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text, or its tokens."""

    prompt: str | Sequence[int]

    def begin(self, model: "Model", options: Options) -> "Iterator[Piece]":
        return model.generate(self.prompt, **options)


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation, as `Model.chat` takes it."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, object]] | None = None
    template_kwargs: Mapping[str, object] = field(default_factory=dict)
    continue_final_message: bool = False

    def begin(self, model: "Model", options: Options) -> "Iterator[Piece]":
        return model.chat(
            self.messages, tools=self.tools, template_kwargs=self.template_kwargs,
            continue_final_message=self.continue_final_message, **options)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Run:
    """An answer on its way. `stats` are whole behind the last piece."""

    stats: "Stats"
    pieces: "AsyncGenerator[Piece, None]"

    @property
    def finish_reason(self) -> Literal["stop", "length"]:
        return "stop" if self.stats.finish_reason == "stop" else "length"


class Observer(Protocol):
    """Is told how runs go; see `metrics`."""

    def waited(self, seconds: float) -> None: ...

    def ended(self, stats: "Stats", first: float) -> None:
        """`first`: seconds from the request to its first token."""


@dataclass(slots=True)
class Seat:
    """A slot and a model, as long as a request needs them. `deadline` is the event loop's time."""

    slot: Slot
    model: "Model"
    name: str
    deadline: float
    came: float
    observer: Observer | None = None

    @asynccontextmanager
    async def run(self, asked: Asked, options: Options) -> AsyncIterator[Run]:
        """Begin an answer; it ends behind this block, or at the deadline, cut off as if it had become too long."""
        stats, pieces = await self.slot.call(lambda: self._begun(asked, options))
        timer = asyncio.get_running_loop().call_at(self.deadline, self.slot.stop)
        clock = Clock(self.came)
        try:
            async with aclosing(self.slot.each(clock.passed(pieces))) as drawn:
                yield Run(stats, drawn)
        finally:
            timer.cancel()
            if self.observer:
                self.observer.ended(stats, clock.first)

    def _begun(self, asked: Asked, options: Options) -> "tuple[Stats, Iterator[Piece]]":
        pieces = asked.begin(self.model, options)
        return self.model.stats, pieces


class Clock:
    """Sees when the first piece comes."""

    def __init__(self, came: float) -> None:
        self.came = came
        self.first = 0.0

    def passed(self, pieces: "Iterator[Piece]") -> "Iterator[Piece]":
        """All of them. An end where there should be more is no failure here: `stats` tell of it."""
        with suppress(ContextOverflow, Incomplete):
            for piece in pieces:
                self.first = perf_counter() - self.came
                yield piece
                break
            yield from pieces


class Desk:
    """Requests are answered together as far as there are slots, and room in their model."""

    def __init__(self, shelf: Shelf, settings: Settings) -> None:
        self.shelf = shelf
        self.settings = settings
        self.slots = Slots(settings.parallel, settings.queue)
        self.observer: Observer | None = None
        self._door = asyncio.Lock()  # who waits in it is let in first
        self._left = asyncio.Event()  # somebody has
        self.leaves_at: dict[str, datetime] = {}  # the models that do when nobody asks for them
        self._leaving_soon: dict[str, asyncio.Task[None]] = {}

    @asynccontextmanager
    async def seat(self, wanted: str | None) -> AsyncIterator[Seat]:
        """Wait for a slot, then for the model. Raises Problem, and what loading raises."""
        offered, came = self.shelf.resolved(wanted), perf_counter()
        deadline = asyncio.get_running_loop().time() + self.settings.timeout
        async with self.slots.one(self.settings.timeout) as slot:
            if self.observer:
                self.observer.waited(perf_counter() - came)
            with self._used(await self._model(slot, offered), slot) as model:
                self._stays(offered.name)
                yield Seat(slot, model, offered.name, deadline, came, self.observer)

    def has_room_beside(self, seat: Seat) -> bool:
        """Whether there is one more seat at its model, for which nobody else waits."""
        waits = self._door.locked() or not self.slots.has_spare
        return not waits and seat.name in self.shelf.loaded and self._at_work() < seat.model.parallel

    @asynccontextmanager
    async def beside(self, seat: Seat) -> AsyncIterator[Seat]:
        """One more seat for the same request. Where there `has_room_beside`, it is there at once."""
        async with self.slots.one(self.settings.timeout) as slot:
            with self._used(self.shelf.loaded[seat.name].beside(slot.number), slot) as model:
                yield replace(seat, slot=slot, model=model)

    @contextmanager
    def _used(self, model: "Model", slot: Slot) -> "Iterator[Model]":
        slot.model = model
        try:
            yield model
        finally:
            slot.model = None
            self._left.set()

    async def _model(self, slot: Slot, offered: Offered) -> "Model":
        """The model, beside those who use it already. One that is not in memory is loaded when nobody is at work, as
        others may have to make room for it."""
        async with self._door:
            while self._at_work() and offered.name not in self.shelf.loaded:
                await self._leaving()
            model = await slot.call(lambda: self.shelf.model(offered))
            model.engine.program.meanwhile(self.slots.outbox.left, self.slots.outbox.send)
            while self._at_work() >= model.parallel:
                await self._leaving()
            return model.beside(slot.number) if model.parallel > 1 else model

    def _at_work(self) -> int:
        return sum(slot.model is not None for slot in self.slots.all)

    async def _leaving(self) -> None:
        self._left.clear()
        await self._left.wait()

    async def let_go(self, seat: Seat) -> None:
        """Take the model out of memory, unless somebody else is using it."""
        if self._at_work() == 1:
            await seat.slot.call(lambda: self.shelf.unload(seat.name))

    def keep(self, name: str, seconds: float | None) -> None:
        """Have a model leave memory when nobody has asked for it for so many seconds. If nothing is said it stays until
        another one needs the room."""
        self._stays(name)
        if seconds is not None and seconds < LONGEST:
            self.leaves_at[name] = datetime.now(UTC) + timedelta(seconds=seconds)
            self._leaving_soon[name] = asyncio.create_task(self._leave(name, seconds))

    def _stays(self, name: str) -> None:
        self.leaves_at.pop(name, None)
        if task := self._leaving_soon.pop(name, None):
            task.cancel()

    async def _leave(self, name: str, seconds: float) -> None:
        """Try again where others are at work: until one of them asks for it."""
        while name in self.leaves_at:
            await asyncio.sleep(seconds)
            seconds = max(seconds, AGAIN)
            with suppress(Problem):
                async with self.slots.one(self.settings.timeout) as slot, self._door:
                    if not self._at_work():
                        self.leaves_at.pop(name, None)
                        await slot.call(lambda: self.shelf.unload(name))

    async def model(self, wanted: str | None) -> "tuple[Offered, Model]":
        """A model to ask what needs no computing; one that is not in memory is loaded, in a slot."""
        offered = self.shelf.resolved(wanted)
        if model := self.shelf.loaded.get(offered.name):
            return offered, model
        async with self.seat(offered.name) as seat:
            return offered, seat.model

    def close(self) -> None:
        self.slots.close()
        self.shelf.close()

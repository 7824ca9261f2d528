"""One model on this machine that answers requests, several at a time, and gives out answers as they are finished."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, Self

from localinfer.batch.job import Answer
from localinfer.batch.reading import CHAT, TEXTS, Request
from localinfer.errors import NotEnoughMemory
from localinfer.server.desk import Desk
from localinfer.server.fields import Fields
from localinfer.server.openai import chat, completions, embeddings, responses
from localinfer.server.problems import problem_of
from localinfer.server.settings import Settings
from localinfer.server.shelf import Load, Shelf

ANSWERS: dict[str, Callable[[Fields, Desk], Awaitable[dict[str, Any]]]] = {
    CHAT: lambda fields, desk: chat.completion(chat.question_of(fields), desk),
    TEXTS: lambda fields, desk: completions.completion(completions.question_of(fields), desk),
    "/v1/responses": lambda fields, desk: responses.response(responses.question_of(fields), desk),
    "/v1/embeddings": embeddings.embeddings,
}
PASSING = (500, 503)  # statuses of failures that may be none the next time


class Answering:
    """With the model of this name, loaded at once: raises as `localinfer.load`."""

    def __init__(self, load: Load, name: str) -> None:
        self._shelf = Shelf([name], load)
        model = self._shelf.model(self._shelf.resolved(None))
        self._length = model.options.n_predict
        self._asked = model.parallel + 1  # requests at a time: one stands in line for those that are computed
        self._desk = Desk(self._shelf, Settings(parallel=model.parallel, queue=1, timeout=math.inf))
        self._loop = asyncio.Runner()

    def each(self, requests: Iterable[Request]) -> Iterator[Answer]:
        """The answers; what is wrong with a request is one, too. NotEnoughMemory ends all of it."""
        waiting = iter(requests)
        running: set[asyncio.Task[Answer]] = set()

        async def some() -> set[asyncio.Task[Answer]]:
            """Those that finish next; none at the end."""
            while len(running) < self._asked and (request := next(waiting, None)):
                running.add(asyncio.create_task(self._answer(request)))
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED) if running else (set(), None)
            return done

        try:
            while done := self._loop.run(some()):
                for task in done:
                    running.remove(task)
                    yield task.result()
        finally:
            self._loop.run(ended(running))

    async def _answer(self, request: Request) -> Answer:
        """What fails without the request being at fault, such as a template in a moment when nothing moves on this
        machine, is tried once more.
        """
        answer = await self._tried(request)
        return await self._tried(request) if answer.status in PASSING else answer

    async def _tried(self, request: Request) -> Answer:
        try:
            if request.problem:
                raise request.problem
            fields = request.body
            if request.url == TEXTS:  # whose own default are 16 tokens
                fields = {"n_predict": self._length, **fields}
            return Answer(request, 200, await ANSWERS[request.url](fields, self._desk))
        except NotEnoughMemory:
            raise
        except Exception as error:
            problem = problem_of(error)
            return Answer(request, problem.status, {"error": problem.error})

    def close(self) -> None:
        self._loop.close()
        self._desk.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def ended(tasks: Iterable[asyncio.Task[Answer]]) -> None:
    """Drop what they do."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

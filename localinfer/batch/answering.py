"""One model on this machine answers the requests of a batch, several at a time."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, TypeVar

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
TEMPORARY = (500, 503)  # HTTP statuses of failures that may not happen again
T = TypeVar("T")


class Answering:
    """Loads the model of this name when it is made, and raises what `localinfer.load` raises."""

    def __init__(self, load: Load, name: str) -> None:
        self._shelf = Shelf([name], load)
        model = self._shelf.model(self._shelf.resolved(None))
        self._length = model.options.n_predict
        self._at_once = model.parallel + 1  # one request more than are computed waits, so that no slot is ever idle
        self._desk = Desk(self._shelf, Settings(parallel=model.parallel, queue=1, timeout=math.inf))
        self._loop, self._thread = asyncio.Runner(), ThreadPoolExecutor(1)

    def each(self, requests: Iterable[Request]) -> Generator[Answer, None, None]:
        """The answers, each as soon as it is finished. A request that fails has an answer, too, which says why; only
        NotEnoughMemory is raised, and ends everything."""
        waiting = iter(requests)
        running: set[asyncio.Task[Answer]] = set()

        async def some() -> set[asyncio.Task[Answer]]:
            """Start as many requests as there is room for, and wait for the next ones to finish; none at the end."""
            while len(running) < self._at_once and (request := next(waiting, None)):
                running.add(asyncio.create_task(self._answer(request)))
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED) if running else (set(), None)
            return done

        try:
            while done := self._run(some):
                for task in done:
                    running.remove(task)
                    yield task.result()
        finally:
            waiting = iter(())
            self._loop.get_loop().call_soon_threadsafe(cancel, running)
            self._run(lambda: ended(running))

    def _run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of this, which a thread of its own runs: no Ctrl-C comes in the midst of what asyncio does."""
        return self._thread.submit(lambda: self._loop.run(work())).result()

    async def _answer(self, request: Request) -> Answer:
        """The answer to a request. A failure that is not the request's own fault, such as a chat template that ran out
        of time on a busy machine, is tried once more."""
        answer = await self._tried(request)
        return await self._tried(request) if answer.status in TEMPORARY else answer

    async def _tried(self, request: Request) -> Answer:
        try:
            if request.problem:
                raise request.problem
            fields = request.body
            if request.url == TEXTS:  # OpenAI's default there is 16 tokens
                fields = {"n_predict": self._length, **fields}
            return Answer(request, 200, await ANSWERS[request.url](fields, self._desk))
        except NotEnoughMemory:
            raise
        except Exception as error:
            problem = problem_of(error)
            return Answer(request, problem.status, {"error": problem.error})

    def close(self) -> None:
        self._thread.shutdown()
        self._loop.close()
        self._desk.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def cancel(tasks: Iterable[asyncio.Task[Answer]]) -> None:
    """Tell all of them to end."""
    for task in tasks:
        task.cancel()


async def ended(tasks: Iterable[asyncio.Task[Answer]]) -> None:
    """Wait until all of them have ended, which are told to."""
    cancel(tasks)
    await asyncio.gather(*tasks, return_exceptions=True)

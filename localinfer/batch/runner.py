"""Runs the requests of a batch with one model on this machine, several at a time."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, TypeVar

from localinfer.batch.input_file import CHAT_URL, COMPLETIONS_URL, Request
from localinfer.batch.job import Response
from localinfer.errors import NotEnoughMemoryError
from localinfer.server.dispatcher import Dispatcher
from localinfer.server.http.api_errors import to_api_error
from localinfer.server.models.catalog import Catalog, Load
from localinfer.server.models.model_cache import ModelCache
from localinfer.server.openai import chat, completions, embeddings, response_request, responses
from localinfer.server.requests.request_fields import Fields
from localinfer.server.settings import Settings

HANDLERS: dict[str, Callable[[Fields, Dispatcher], Awaitable[dict[str, Any]]]] = {
    CHAT_URL: lambda fields, dispatcher: chat.completion(chat.parse_chat_request(fields), dispatcher),
    COMPLETIONS_URL: lambda fields, dispatcher: completions.completion(
        completions.parse_completion_request(fields), dispatcher
    ),
    "/v1/responses": lambda fields, dispatcher: responses.response(
        response_request.parse_response_request(fields), dispatcher
    ),
    "/v1/embeddings": embeddings.embeddings,
}
RETRIED_STATUSES = (500, 503)  # HTTP statuses of failures that may be temporary
T = TypeVar("T")


class Runner:
    """Runs requests with one model. The constructor loads it and raises what `localinfer.load` raises. `media_path` is
    the folder of images and sounds that requests may name.
    """

    def __init__(self, load: Load, name: str, media_path: str = "") -> None:
        self._model_cache = ModelCache(Catalog.fixed([name]), load)
        model = self._model_cache.get(self._model_cache.resolve(None))
        self._max_tokens = model.options.n_predict
        self._max_running = model.parallel + 1  # one request waits, so that no slot becomes idle
        settings = Settings(parallel=model.parallel, queue=1, timeout=math.inf, media_path=media_path)
        self._dispatcher = Dispatcher(self._model_cache, settings)
        self._loop, self._thread = asyncio.Runner(), ThreadPoolExecutor(1)

    def responses(self, requests: Iterable[Request]) -> Generator[Response, None, None]:
        """Yield each response as soon as it is complete.

        A failed request yields a response with the error. Only NotEnoughMemoryError is raised; it ends the job.
        """
        waiting = iter(requests)
        running: set[asyncio.Task[Response]] = set()

        async def step() -> set[asyncio.Task[Response]]:
            """Start as many requests as may run, and return the next completed tasks; an empty set at the end."""
            while len(running) < self._max_running and (request := next(waiting, None)):
                running.add(asyncio.create_task(self._respond(request)))
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED) if running else (set(), None)
            return done

        try:
            while done := self._run(step):
                for task in done:
                    running.remove(task)
                    yield task.result()
        finally:
            waiting = iter(())
            self._loop.get_loop().call_soon_threadsafe(cancel_tasks, running)
            self._run(lambda: cancel_and_wait(running))

    def _run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine in the event loop's thread and return its result. Ctrl-C does not interrupt that thread."""
        return self._thread.submit(lambda: self._loop.run(work())).result()

    async def _respond(self, request: Request) -> Response:
        """Return the response to a request.

        Retries once after a failure that may be temporary, such as a chat template that times out on a busy machine.
        """
        response = await self._try_request(request)
        return await self._try_request(request) if response.status in RETRIED_STATUSES else response

    async def _try_request(self, request: Request) -> Response:
        try:
            if request.error:
                raise request.error
            fields = request.body
            if request.url == COMPLETIONS_URL:  # OpenAI's default for this endpoint is only 16 tokens
                fields = {"n_predict": self._max_tokens, **fields}
            return Response(request, 200, await HANDLERS[request.url](fields, self._dispatcher))
        except NotEnoughMemoryError:
            raise
        except Exception as error:
            api_error = to_api_error(error)
            return Response(request, api_error.status, {"error": api_error.error})

    def close(self) -> None:
        self._thread.shutdown()
        self._loop.close()
        self._dispatcher.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def cancel_tasks(tasks: Iterable[asyncio.Task[Response]]) -> None:
    """Cancel all tasks."""
    for task in tasks:
        task.cancel()


async def cancel_and_wait(tasks: Iterable[asyncio.Task[Response]]) -> None:
    """Cancel all tasks and wait until they have ended."""
    cancel_tasks(tasks)
    await asyncio.gather(*tasks, return_exceptions=True)

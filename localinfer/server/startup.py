"""The start of the server: it answers that the model is loading until the model is there."""

import threading
from collections.abc import Callable

from starlette.types import Receive, Scope, Send

from localinfer.server.http.api_errors import APIError
from localinfer.server.http.middleware import Middleware
from localinfer.server.http.streaming import JSONResponse

ALWAYS_ANSWERED = ("/", "/page/")  # the web UI: a path, and a prefix


class Startup:
    """Loads a model in a thread of its own. `error` is what loading has raised."""

    def __init__(self, load: Callable[[], object] | None = None) -> None:
        """Without `load`, there is nothing to wait for."""
        self.is_loading = load is not None
        self.error: BaseException | None = None
        self._load = load

    def begin(self, on_loaded: Callable[[], None], on_failed: Callable[[], None]) -> None:
        """Begin to load, and call one of the functions in the end; at once if there is nothing to load."""

        def run(load: Callable[[], object]) -> None:
            try:
                load()
            except BaseException as error:
                self.error = error
                on_failed()
            else:
                self.is_loading = False
                on_loaded()

        if self._load is None:
            on_loaded()
        else:
            threading.Thread(target=run, args=[self._load], name="startup", daemon=True).start()

    def require_success(self) -> None:
        """Raise what loading has raised, or KeyboardInterrupt if the server ended before the model was loaded."""
        if self.error is not None:
            raise self.error
        if self.is_loading:
            raise KeyboardInterrupt


class LoadingMiddleware(Middleware):
    """Answers all requests with status 503 while the model is loading, except those for the web UI."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, prefix = ALWAYS_ANSWERED
        startup: Startup = scope["app"].state.startup
        if not startup.is_loading or scope["path"] == path or scope["path"].startswith(prefix):
            await self.app(scope, receive, send)
            return
        error = APIError(503, "Loading model", code="loading")
        body = {"error": error.message if scope["path"].startswith("/api/") else error.error}
        await JSONResponse(body, 503, headers={"retry-after": "1"})(scope, receive, send)

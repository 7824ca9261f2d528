"""Parameters of the query that name a model: `?model=NAME`, and `?autoload=false`, which loads none for the request.

They hold for the whole request, in every task that it starts.
"""

from contextvars import ContextVar
from urllib.parse import parse_qsl

from starlette.types import Receive, Scope, Send

from localinfer.server.http.middleware import Middleware

MAX_FIELDS = 100
TRUE = ("true", "1")  # as in llama.cpp's server; any other value is false

requested_model: ContextVar[str] = ContextVar("requested_model", default="")  # for bodies that name no model
autoload: ContextVar[bool | None] = ContextVar("autoload", default=None)  # None: as the settings of the server say


class ModelQueryMiddleware(Middleware):
    """Sets the parameters for the request."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["query_string"]:
            fields = query_fields(scope["query_string"])
            requested_model.set(fields.get("model", ""))
            autoload.set(fields["autoload"] in TRUE if fields.get("autoload") else None)
        await self.app(scope, receive, send)


def query_fields(query: bytes) -> dict[str, str]:
    """Return the fields of a query; none for one that has too many."""
    try:
        return dict(parse_qsl(query.decode("latin-1"), max_num_fields=MAX_FIELDS))
    except ValueError:
        return {}

"""An MCP server of the library `mcp`, over stdio, or over HTTP with the path of the endpoint:

  python tests/harness/library_mcp_server.py [http|sse PORT]

It serves HTTP only to requests that have the header `x-key: secret`.
"""

import sys
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel

server = MCPServer("library", version="2", log_level="ERROR")


class Weather(BaseModel):
    city: str
    degrees: int


@server.tool()
def get_weather(city: str) -> Weather:
    """The weather of a city now"""
    return Weather(city=city, degrees=21)


@server.tool()
async def add_tool(ctx: Context) -> str:
    """Add a tool to this server"""

    def added() -> str:
        """A tool that was added"""
        return "added"

    server.add_tool(added)
    await ctx.notify_tools_changed()
    return "done"


def with_key(app: Any) -> Any:
    """Return an app that serves requests with the key; others get status 401."""

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and (b"x-key", b"secret") not in scope["headers"]:
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b"no key"})
            return
        await app(scope, receive, send)

    return serve


if __name__ == "__main__":
    if len(sys.argv) == 1:
        server.run()
    else:
        import uvicorn

        app = server.sse_app() if sys.argv[1] == "sse" else server.streamable_http_app()
        uvicorn.run(
            with_key(app), host="127.0.0.1", port=int(sys.argv[2]), log_level="error", timeout_graceful_shutdown=1,
        )  # fmt: skip

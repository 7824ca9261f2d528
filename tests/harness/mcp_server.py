"""A small MCP server over streamable HTTP, in a thread, which pages of any origin may use.

It has two tools: `add` responds with JSON, `wait` with an event stream. `forget` makes it lose its sessions. The path
/missing has status 404, and pages may not use /closed.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}
TOOLS = [
    {"name": "add", "description": "Add two numbers", "inputSchema": SCHEMA},
    {"name": "wait", "description": "Wait for an event", "inputSchema": {"type": "object"}},
]
CORS = {
    "Access-Control-Allow-Origin": "*", "Access-Control-Allow-Headers": "*, Authorization",
    "Access-Control-Expose-Headers": "Mcp-Session-Id",
}  # fmt: skip


class Handler(BaseHTTPRequestHandler):
    """Answers requests; `server.owner` is the McpServer."""

    server: Any

    def do_OPTIONS(self) -> None:
        self.reply(204)

    def do_POST(self) -> None:
        owner: McpServer = self.server.owner
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/missing":
            self.reply(404)
            return
        owner.requests.append((message, {name.lower(): value for name, value in self.headers.items()}))
        if message["method"] == "initialize":
            owner.sessions.append(f"session-{len(owner.requests)}")
            result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "test"}}
            self.reply(200, self.result(message, result), **{"Mcp-Session-Id": owner.sessions[-1]})
        elif self.headers["mcp-session-id"] not in owner.sessions:
            self.reply(404)
        elif message["method"] == "tools/list":  # a page with one tool each
            page = int(message["params"].get("cursor", 0))
            more = {"nextCursor": str(page + 1)} if page + 1 < len(TOOLS) else {}
            self.reply(200, self.result(message, {"tools": [TOOLS[page]], **more}))
        elif message["method"] == "tools/call":
            self.call(message)
        else:
            self.reply(202)

    def call(self, message: Any) -> None:
        name, values = message["params"]["name"], message["params"]["arguments"]
        if name == "add":
            content = [{"type": "text", "text": str(values["a"] + values["b"])}]
            self.reply(200, self.result(message, {"content": content}))
        else:
            notification = {"jsonrpc": "2.0", "method": "notifications/message", "params": {}}
            failed = {"content": [{"type": "text", "text": "nothing happened"}], "isError": True}
            self.reply(200, [notification, self.result(message, failed)])

    @staticmethod
    def result(message: Any, result: object) -> dict[str, object]:
        return {"jsonrpc": "2.0", "id": message["id"], "result": result}

    def reply(self, status: int, body: object = None, **headers: str) -> None:
        """Respond with JSON, or with an event stream of a list of messages."""
        is_stream = isinstance(body, list)
        content = "".join(f"event: message\r\ndata: {json.dumps(each)}\r\n\r\n" for each in body) if is_stream else (
            "" if body is None else json.dumps(body))  # fmt: skip
        self.send_response(status)
        kind = "text/event-stream" if is_stream else "application/json"
        sizes = {"Content-Type": kind, "Content-Length": str(len(content))}
        for name, value in ((CORS if self.path != "/closed" else {}) | headers | sizes).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content.encode())

    def log_message(self, *_: object) -> None:
        """Print nothing."""


class McpServer:
    """The running server. `requests` are the messages that it got, with their headers in lower case."""

    def __init__(self) -> None:
        self.requests: list[tuple[Any, dict[str, str]]] = []
        self.sessions: list[str] = []
        self.http: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.owner = self
        self.origin = f"http://127.0.0.1:{self.http.server_port}"
        self.url = f"{self.origin}/mcp"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def forget(self) -> None:
        self.sessions.clear()

    def methods(self) -> list[str]:
        return [message["method"] for message, _ in self.requests]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.http.shutdown()
        self.http.server_close()

"""A proxy on loopback that passes HTTP on to a server and keeps every exchange.

  with RecordingProxy(server.url) as proxy:
      subprocess.run(["client", proxy.url])
      print(proxy.exchanges)
"""

import http.client
import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

HOP_BY_HOP = {"connection", "transfer-encoding", "keep-alive", "content-length", "host"}


@dataclass
class Exchange:
    """A request and its response. The response grows while it is streamed."""

    method: str
    path: str
    sent: bytes
    status: int = 0
    content_type: str = ""
    received: bytes = b""
    chunk_times: list[float] = field(default_factory=list)  # seconds since the request

    @property
    def request(self) -> Any:
        """The JSON of the request; None if it has none."""
        return json.loads(self.sent) if self.sent.startswith((b"{", b"[")) else None

    @property
    def events(self) -> list[Any]:
        """The JSON of all server-sent events, or of the whole response."""
        if self.content_type.startswith("text/event-stream"):
            lines = [line[len(b"data: "):] for line in self.received.splitlines() if line.startswith(b"data: ")]
            return [json.loads(line) for line in lines if line != b"[DONE]"]
        return [json.loads(self.received)] if self.received.startswith((b"{", b"[")) else []


class RecordingProxy:
    """Listens on a free port of 127.0.0.1, and passes requests on to the server with this URL."""

    def __init__(self, target: str) -> None:
        self.target = urlsplit(target)
        self.exchanges: list[Exchange] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def pass_on(self) -> None:
                proxy.pass_on(self)

            do_GET = do_POST = do_HEAD = do_DELETE = do_OPTIONS = pass_on

            def log_message(self, format: str, *arguments: object) -> None:
                """Print nothing."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def pass_on(self, client: BaseHTTPRequestHandler) -> None:
        """Answer a request with the response of the server, piece by piece."""
        start = time.perf_counter()
        sent = client.rfile.read(int(client.headers.get("content-length") or 0))
        exchange = Exchange(client.command, client.path, sent)
        self.exchanges.append(exchange)
        assert self.target.hostname
        server = http.client.HTTPConnection(self.target.hostname, self.target.port, timeout=3600)
        headers = {name: value for name, value in client.headers.items() if name.lower() not in HOP_BY_HOP}
        try:
            server.request(client.command, client.path, sent or None, headers)
            answer = server.getresponse()
            exchange.status, exchange.content_type = answer.status, answer.getheader("content-type") or ""
            client.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in HOP_BY_HOP:
                    client.send_header(name, value)
            client.send_header("connection", "close")
            client.end_headers()
            while piece := answer.read1(65536):
                exchange.received += piece
                exchange.chunk_times.append(time.perf_counter() - start)
                client.wfile.write(piece)
                client.wfile.flush()
        except ConnectionError:
            pass  # the client has left: so does the proxy
        finally:
            server.close()
            client.close_connection = True

    def __enter__(self) -> Self:
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.http.shutdown()
        self.http.server_close()

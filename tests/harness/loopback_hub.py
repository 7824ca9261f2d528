"""A web server on loopback that behaves like the Hugging Face hub, with injectable faults.

  with Hub() as hub:
      hub.repos["owner/repo"] = {"model-Q4_K_M.gguf": b"GGUF..."}
      hub.files["/model.gguf"] = b"GGUF..."           # any other file: hub.url + "/model.gguf"
      hub.faults.append(Fault(cut=1000))              # the next file response breaks off after 1000 bytes

The hub redirects file requests to another port, which stands for its CDN. `requests` records all requests.
"""

import hashlib
import json
import re
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

COMMIT = "1234567890" * 4
RESOLVE = re.compile(r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<commit>[^/]+)/(?P<file>.+)")
INFO = re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)")
BLOB = re.compile(r"/blobs/(?P<digest>[0-9a-f]{64})")
CHUNK_BYTES = 1 << 14  # bytes sent at once


@dataclass(frozen=True)
class Fault:
    """A fault in the response to a file request."""

    status: int = 0  # sent instead of the file
    headers: dict[str, str] = field(default_factory=dict)  # override the usual headers
    n_bytes: int | None = None  # bytes after which the connection breaks
    stall: float = 0  # seconds of silence before that
    ignore_range: bool = False
    range_shift: int = 0  # added to the start of the range
    body: bytes | None = None  # replaces the content of the file
    extra: bytes = b""  # bytes appended to the file
    with_length: bool = True  # whether to send Content-Length


@dataclass(frozen=True)
class RecordedRequest:
    """A request. `port` is that of the hub or of its CDN."""

    method: str
    path: str
    headers: dict[str, str]
    port: int


class Hub:
    """A server that runs until the with block ends. Its attributes may be changed at any time."""

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, bytes]] = {}
        self.files: dict[str, bytes] = {}
        self.commit = COMMIT
        self.gated: set[str] = set()  # listed, but their files are refused
        self.private: dict[str, str] = {}  # access tokens by repository
        self.lfs = True
        self.info: Any = None  # replaces the repository information; bytes are sent as they are
        self.info_statuses: deque[tuple[int, dict[str, str]]] = deque()
        self.etags = True
        self.rate = 0.0  # delay in seconds for each chunk
        self.faults: deque[Fault] = deque()
        self.requests: list[RecordedRequest] = []
        handler = type("HandlerOfThis", (Handler,), {"hub": self})
        self.servers = [ThreadingHTTPServer(("127.0.0.1", 0), handler) for _ in range(2)]
        for server in self.servers:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.servers[0].server_port}"

    @property
    def delivery_url(self) -> str:
        return f"http://127.0.0.1:{self.servers[1].server_port}"

    def requests_for(self, pattern: str) -> list[RecordedRequest]:
        """Return the requests whose path matches a regular expression."""
        return [each for each in self.requests if re.search(pattern, each.path)]

    def describe(self, repo: str) -> dict[str, Any]:
        """Return the hub's information about a repository."""
        siblings = []
        for name, content in self.repos[repo].items():
            sibling: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": git_blob_id(content)}
            if self.lfs:
                sibling["lfs"] = {"sha256": sha256(content), "size": len(content), "pointerSize": 134}
            siblings.append(sibling)
        return {"id": repo, "sha": self.commit, "private": False, "siblings": siblings}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for server in self.servers:
            server.shutdown()
            server.server_close()


class Handler(BaseHTTPRequestHandler):
    """Answers the requests to a `Hub`."""

    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(
            RecordedRequest(self.command, self.path, dict(self.headers.items()), self.server.server_port)
        )
        if actual := INFO.fullmatch(path):
            self.send_info(actual["repo"])
        elif actual := RESOLVE.fullmatch(path):
            self.redirect(actual["repo"], actual["commit"], actual["file"])
        elif actual := BLOB.fullmatch(path):
            contents = [content for repo in self.hub.repos.values() for content in repo.values()]
            self.send_file(next((each for each in contents if sha256(each) == actual["digest"]), None))
        else:
            self.send_file(self.hub.files.get(path))

    def send_info(self, repo: str) -> None:
        if self.hub.info_statuses:
            status, headers = self.hub.info_statuses.popleft()
            self.respond(status, headers=headers)
        elif self.check_access(repo):
            info = self.hub.describe(repo) if self.hub.info is None else self.hub.info
            self.respond(200, info if isinstance(info, bytes) else json.dumps(info).encode())

    def redirect(self, repo: str, commit: str, file: str) -> None:
        if not self.check_access(repo):
            return
        if repo in self.hub.gated:
            message = f"Access to model {repo} is restricted."
            self.respond(403, headers={"X-Error-Code": "GatedRepo", "X-Error-Message": message})
            return
        content = self.hub.repos[repo].get(file)
        if content is None or commit not in ("main", self.hub.commit):
            self.respond(404, headers={"X-Error-Code": "EntryNotFound"})
            return
        headers = {"X-Repo-Commit": self.hub.commit, "X-Linked-Size": str(len(content))}
        headers["X-Linked-ETag"] = f'"{sha256(content) if self.hub.lfs else git_blob_id(content)}"'
        self.respond(302, headers=headers | {"Location": f"{self.hub.delivery_url}/blobs/{sha256(content)}"})

    def check_access(self, repo: str) -> bool:
        token = self.hub.private.get(repo)
        if repo not in self.hub.repos or (token and self.headers.get("Authorization") != f"Bearer {token}"):
            self.respond(401, headers={"X-Error-Code": "RepoNotFound"})
            return False
        return True

    def send_file(self, content: bytes | None) -> None:
        """Send a file or the requested range of it, with the next fault if there is one."""
        if content is None:
            self.respond(404)
            return
        range_match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        fault = self.hub.faults.popleft() if self.hub.faults else Fault()
        content = content if fault.body is None else fault.body
        etag = f'"{sha256(content)[:20]}"'
        same = self.headers.get("If-Range", etag) == etag
        start = int(range_match[1]) if range_match and same and not fault.ignore_range else 0
        headers = {"ETag": etag} if self.hub.etags else {}
        if fault.status:
            self.respond(fault.status, headers=fault.headers)
        elif start >= len(content) and start:
            self.respond(416, headers={"Content-Range": f"bytes */{len(content)}"})
        else:
            start += fault.range_shift
            if start:
                headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            self.respond(206 if start else 200, content[start:] + fault.extra, headers | fault.headers, fault)

    def respond(
        self, status: int, body: bytes = b"", headers: dict[str, str] | None = None, fault: Fault = Fault()
    ) -> None:
        default = {"Content-Length": str(len(body))} if fault.with_length else {"Connection": "close"}
        self.send_response(status)
        for name, value in (default | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        end = len(body) if fault.n_bytes is None else fault.n_bytes
        try:
            for at in range(0, end, CHUNK_BYTES):
                self.wfile.write(body[at : min(at + CHUNK_BYTES, end)])
                time.sleep(self.hub.rate)
            self.wfile.flush()
            time.sleep(fault.stall)
        except OSError:  # the client disconnected
            self.close_connection = True
        if end < len(body) or not fault.with_length:
            self.close_connection = True

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing."""


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def git_blob_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()

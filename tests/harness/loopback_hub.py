"""A web server on loopback that answers as the Hugging Face hub does, and as badly as servers do.

    with Hub() as hub:
        hub.repos["owner/repo"] = {"model-Q4_K_M.gguf": b"GGUF..."}
        hub.files["/model.gguf"] = b"GGUF..."           # any other file: hub.url + "/model.gguf"
        hub.faults.append(Fault(cut=1000))              # the next answer with a file's bytes breaks off

The hub's files are led to on another port, which stands for the network that delivers them. `seen` has all requests.
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
PIECE = 1 << 14  # bytes that are sent at once


@dataclass(frozen=True)
class Fault:
    """What an answer with a file's bytes has that it should not."""

    status: int = 0  # instead of the bytes
    headers: dict[str, str] = field(default_factory=dict)  # other values
    cut: int | None = None  # bytes after which the connection breaks
    stall: float = 0  # seconds of silence before that
    ignore_range: bool = False
    shift: int = 0  # of the range that is sent, and said to be sent
    body: bytes | None = None  # other bytes of the whole file
    after: bytes = b""  # more than the file has
    length: bool = True  # is it said how many?


@dataclass(frozen=True)
class Seen:
    """A request; `port` is the hub's or that of the network that delivers."""

    method: str
    path: str
    headers: dict[str, str]
    port: int


class Hub:
    """Serves until it is closed. What it answers may be changed at any time."""

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, bytes]] = {}
        self.files: dict[str, bytes] = {}
        self.commit = COMMIT
        self.gated: set[str] = set()  # everybody is told of them, and nobody gets their files
        self.private: dict[str, str] = {}  # token that a repository wants
        self.lfs = True
        self.info: Any = None  # instead of what is true of a repository
        self.info_statuses: deque[tuple[int, dict[str, str]]] = deque()
        self.etags = True
        self.rate = 0.0  # seconds for each piece
        self.faults: deque[Fault] = deque()
        self.seen: list[Seen] = []
        handler = type("HandlerOfThis", (Handler,), {"hub": self})
        self.servers = [ThreadingHTTPServer(("127.0.0.1", 0), handler) for _ in range(2)]
        for server in self.servers:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.servers[0].server_port}"

    @property
    def delivery(self) -> str:
        return f"http://127.0.0.1:{self.servers[1].server_port}"

    def asked(self, pattern: str) -> list[Seen]:
        """The requests for paths in which this is found."""
        return [each for each in self.seen if re.search(pattern, each.path)]

    def describe(self, repo: str) -> dict[str, Any]:
        """What the hub tells of a repository."""
        siblings = []
        for name, content in self.repos[repo].items():
            sibling: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": git_name(content)}
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
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.seen.append(Seen(self.command, self.path, dict(self.headers.items()), self.server.server_port))
        if found := INFO.fullmatch(path):
            self.tell(found["repo"])
        elif found := RESOLVE.fullmatch(path):
            self.lead(found["repo"], found["commit"], found["file"])
        elif found := BLOB.fullmatch(path):
            contents = [content for repo in self.hub.repos.values() for content in repo.values()]
            self.deliver(next((each for each in contents if sha256(each) == found["digest"]), None))
        else:
            self.deliver(self.hub.files.get(path))

    def tell(self, repo: str) -> None:
        if self.hub.info_statuses:
            status, headers = self.hub.info_statuses.popleft()
            self.answer(status, headers=headers)
        elif self.allowed(repo):
            self.answer(200, json.dumps(self.hub.describe(repo) if self.hub.info is None else self.hub.info).encode())

    def lead(self, repo: str, commit: str, file: str) -> None:
        if not self.allowed(repo):
            return
        if repo in self.hub.gated:
            message = f"Access to model {repo} is restricted."
            self.answer(403, headers={"X-Error-Code": "GatedRepo", "X-Error-Message": message})
            return
        content = self.hub.repos[repo].get(file)
        if content is None or commit not in ("main", self.hub.commit):
            self.answer(404, headers={"X-Error-Code": "EntryNotFound"})
            return
        headers = {"X-Repo-Commit": self.hub.commit, "X-Linked-Size": str(len(content))}
        headers["X-Linked-ETag"] = f'"{sha256(content) if self.hub.lfs else git_name(content)}"'
        self.answer(302, headers=headers | {"Location": f"{self.hub.delivery}/blobs/{sha256(content)}"})

    def allowed(self, repo: str) -> bool:
        token = self.hub.private.get(repo)
        if repo not in self.hub.repos or (token and self.headers.get("Authorization") != f"Bearer {token}"):
            self.answer(401, headers={"X-Error-Code": "RepoNotFound"})
            return False
        return True

    def deliver(self, content: bytes | None) -> None:
        """The bytes of a file, or those that are asked for; with the next fault, if there is one."""
        if content is None:
            self.answer(404)
            return
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        fault = self.hub.faults.popleft() if self.hub.faults else Fault()
        content = content if fault.body is None else fault.body
        etag = f'"{sha256(content)[:20]}"'
        same = self.headers.get("If-Range", etag) == etag
        start = int(asked[1]) if asked and same and not fault.ignore_range else 0
        headers = {"ETag": etag} if self.hub.etags else {}
        if fault.status:
            self.answer(fault.status, headers=fault.headers)
        elif start >= len(content) and start:
            self.answer(416, headers={"Content-Range": f"bytes */{len(content)}"})
        else:
            start += fault.shift
            if start:
                headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            self.answer(206 if start else 200, content[start:] + fault.after, headers | fault.headers, fault)

    def answer(
        self, status: int, body: bytes = b"", headers: dict[str, str] | None = None, fault: Fault = Fault()
    ) -> None:
        usual = {"Content-Length": str(len(body))} if fault.length else {"Connection": "close"}
        self.send_response(status)
        for name, value in (usual | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        end = len(body) if fault.cut is None else fault.cut
        try:
            for at in range(0, end, PIECE):
                self.wfile.write(body[at : min(at + PIECE, end)])
                time.sleep(self.hub.rate)
            self.wfile.flush()
            time.sleep(fault.stall)
        except OSError:  # the client has left
            self.close_connection = True
        if end < len(body) or not fault.length:
            self.close_connection = True

    def log_message(self, format: str, *arguments: object) -> None:
        """Quietly."""


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def git_name(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()

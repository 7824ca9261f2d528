"""A file from a web server: in as many goes as it takes, and proved before it has its name.

    about = look(name, file, url, digest)         # how large it is, and by what we know it again
    download(name, about, path, progress)

What has arrived outlives an interruption, an error and a power cut, as `localinfer.files.unfinished` has it, and the
next go asks for the rest. A server may break off, stall, or lie about lengths and ranges: what it sends is written only
where it belongs, never beyond the promised size, and a digest that is known has the last word. Requests go out through
the client of `huggingface_hub`, which knows the user's proxies and certificates.
"""

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

import httpx2
from huggingface_hub import constants, get_session

from localinfer.errors import LocalInferError, ModelNotFound
from localinfer.files.gguf import open_part
from localinfer.files.unfinished import Unfinished, unfinished
from localinfer.models.stores import Progress, require_network
from localinfer.text import printable

if TYPE_CHECKING:
    from hashlib import _Hash

KEEP = 64 << 20  # bytes after which what has arrived is made to last
PAUSES = (1, 2, 4, 8, 8)  # seconds before the next attempt, as long as none brings anything
QUESTION_PAUSES = (1, 2)  # the same for a question, whose answer a user waits for
PATIENCE = 60  # seconds that we wait at most because a server asks for it
BUSY = (408, 425, 429, 500, 502, 503, 504)
REFUSED = {401: "asks who we are", 403: "does not let us have it", 404: "has no such file", 410: "has it no more"}
SHA256 = re.compile(r"[0-9a-f]{64}")
RANGE = re.compile(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18})")
T = TypeVar("T")


class Unreachable(LocalInferError):
    """A failure that may pass; the server may have asked to wait so many seconds."""

    def __init__(self, message: str, wait: float = 0) -> None:
        super().__init__(message)
        self.wait = wait


class NoConnection(Unreachable):
    """There is no way to the server, or no server: for a question, waiting is of no use."""


@dataclass(frozen=True, slots=True)
class About:
    """What is known of a file before it is here.

    `file` is what it is called, and `url` where it is at the moment. `digest` is its SHA-256, or git's SHA-1 of a file;
    "" where nobody says it. `version` tells whether the server still has the same file: an ETag or a date. With neither
    of them, nothing can be gone on with.
    """

    file: str
    url: str
    size: int
    digest: str = ""
    version: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def identity(self) -> dict[str, str]:
        return {"file": self.file, "content": self.digest or self.version}


def look(name: str, file: str, url: str, digest: str) -> About:
    """Ask about a file whose `digest` may be known, without taking it. Raises ModelNotFound, LocalInferError."""

    def ask() -> About:
        with answer(name, url, {}) as response:
            if response.status_code != 200:
                refuse(name, response)
            size = whole_number(response.headers.get("Content-Length"))
            if not size:
                raise LocalInferError(f"{name}: the server does not say how large it is")
            tag = response.headers.get("ETag", "")
            version = tag if tag.startswith('"') else response.headers.get("Last-Modified", "")
            return About(file, url, size, digest or linked_digest(response), version)

    return patiently(ask)


def linked_digest(response: httpx2.Response) -> str:
    """The SHA-256 that a hub tells, before it leads to where the file is."""
    tags = [each.headers.get("X-Linked-ETag", "").strip('"') for each in [*response.history, response]]
    return next(filter(SHA256.fullmatch, tags), "")


def download(name: str, about: About, path: Path, progress: Progress, before: int = 0, total: int = 0) -> None:
    """Bring the file to `path`. `progress` counts its bytes behind `before` others, of `total`.

    Raises LocalInferError; what has arrived is then kept for the next time, unless it is wrong.
    """
    lasting = bool(about.digest or about.version)
    with unfinished(path, about.size, about.identity, replace=True, lasting=lasting) as file:
        arrived = Arrived(name, about, file)
        try:
            for at in receive(name, about, arrived):
                progress("download", before + at, total or about.size)
        except BaseException:
            with suppress(LocalInferError):  # the disk may be full, which the first error tells
                arrived.keep()
            raise
        arrived.prove()


class Arrived:
    """The bytes that are here, in their order from the start, and their digest."""

    def __init__(self, name: str, about: About, file: Unfinished) -> None:
        self._name, self._about, self._file = name, about, file
        self._begin()
        for data in file.kept():
            self._add(data)

    def write(self, data: bytes) -> None:
        """The next bytes. Raises LocalInferError when they are too many."""
        if self.at + len(data) > self._about.size:
            raise LocalInferError(f"{self._name}: the server sends more than the {self._about.size:,} bytes of it")
        self._file.file.write_at(self.at, data)
        self._add(data)
        if self.at - self._file.at >= KEEP:
            self.keep()

    def keep(self) -> None:
        if self.at > self._file.at:
            self._file.keep(self.at, self.at)

    def forget(self) -> None:
        """All of it: the server begins anew."""
        self._file.discard()
        self._begin()

    def prove(self) -> None:
        """Raise LocalInferError, and forget all, if this is not what was promised, or no model file that is whole."""
        try:
            if self._about.digest:
                self._prove_digest()
            else:
                self._prove_model()
        except LocalInferError:
            self.forget()
            raise

    def _prove_digest(self) -> None:
        expected, found = self._about.digest, self._digest.hexdigest()
        if found != expected:
            kind = "sha256" if len(found) == 64 else "git sha1"
            raise LocalInferError(f"{self._name}: {kind} mismatch: expected {expected}, got {found}")

    def _prove_model(self) -> None:
        path = self._file.file.temporary
        try:
            open_part(path)
        except LocalInferError as error:
            problem = str(error).removeprefix(f"{printable(str(path))}: ")
            raise LocalInferError(f"{self._name}: what the server sends is no model: {problem}") from None

    def _begin(self) -> None:
        self.at = 0
        self._digest = digest_for(self._about)

    def _add(self, data: bytes) -> None:
        self._digest.update(data)
        self.at += len(data)


def digest_for(about: About) -> "_Hash":
    """SHA-256, or what git calls a file by: the SHA-1 of its kind, its size and itself."""
    if len(about.digest) == 40:
        return hashlib.sha1(b"blob %d\0" % about.size, usedforsecurity=False)
    return hashlib.sha256()


def receive(name: str, about: About, arrived: Arrived) -> Iterator[int]:
    """Take what is missing, in as many attempts as it needs. Yields how much is here."""
    failures = 0
    yield arrived.at
    while arrived.at < about.size:
        before = arrived.at
        try:
            for data in rest_of(name, about, arrived):
                arrived.write(data)
                yield arrived.at
            if arrived.at < about.size:
                raise Unreachable(f"{name}: the server broke off")
        except Unreachable as failure:
            failures = 0 if arrived.at > before else failures
            pause(failure, failures, PAUSES)
            failures += 1


def rest_of(name: str, about: About, arrived: Arrived) -> Iterator[bytes]:
    """One answer of the server, from where we are; it may begin anew."""
    headers = dict(about.headers)
    if arrived.at:
        headers["Range"] = f"bytes={arrived.at}-"
        if about.version:
            headers["If-Range"] = about.version
    with answer(name, about.url, headers) as response:
        status = response.status_code
        if status not in (200, 206, 416):
            refuse(name, response)
        if status != 206 and arrived.at:  # the rest cannot be had alone
            arrived.forget()
        if status == 416:
            raise Unreachable(f"{name}: {response.url.host} does not know the rest of the file")
        if part_of(response, about.size) != (arrived.at, about.size):
            raise LocalInferError(f"{name}: {response.url.host} sends another file than was promised, or a wrong part")
        yield from response.iter_raw()


def part_of(response: httpx2.Response, usual: int) -> tuple[int, int] | None:
    """Where what is sent begins, and the size of the whole file; None where the server does not make sense."""
    if response.status_code == 200:
        return 0, whole_number(response.headers.get("Content-Length")) or usual
    found = RANGE.fullmatch(response.headers.get("Content-Range", ""))
    return (int(found[1]), int(found[2])) if found else None


@contextmanager
def answer(name: str, url: str, headers: Mapping[str, str]) -> Iterator[httpx2.Response]:
    """The server's answer to a GET, behind all redirects, its body still to be read.

    Raises Unreachable for what may pass, LocalInferError for what will not.
    """
    require_network(name)
    headers = {"Accept-Encoding": "identity", **headers}
    try:
        with get_session().stream("GET", url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT) as response:
            if response.status_code in BUSY:
                wait = whole_number(response.headers.get("Retry-After")) or 0
                raise Unreachable(f"{name}: {response.url.host} answers {called(response)}", wait)
            yield response
    except (httpx2.UnsupportedProtocol, httpx2.TooManyRedirects, httpx2.InvalidURL) as error:
        raise LocalInferError(f"{name}: {reason(error)}") from None
    except httpx2.TransportError as error:
        raise broken(f"{name}: {reason(error)}", error) from None


def broken(message: str, error: httpx2.HTTPError) -> Unreachable:
    return (NoConnection if isinstance(error, httpx2.ConnectError) else Unreachable)(message)


def refuse(name: str, response: httpx2.Response) -> NoReturn:
    """The error that an answer is."""
    status, host = response.status_code, response.url.host
    if status in REFUSED:
        why = printable(response.headers.get("X-Error-Message", ""), 200)
        raise ModelNotFound(f"{name}: {host} {REFUSED[status]} ({status}){why and f': {why}'}")
    raise LocalInferError(f"{name}: {host} answers {called(response)}")


def called(response: httpx2.Response) -> str:
    return f"{response.status_code} {response.reason_phrase}".strip()


def reason(error: Exception) -> str:
    """Why there is no answer, in few words."""
    if isinstance(error, httpx2.TimeoutException):
        return f"no answer for {constants.HF_HUB_DOWNLOAD_TIMEOUT} s"
    return printable(str(error) or type(error).__name__, 200)


def whole_number(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"[0-9]{1,18}", text) else None


def patiently(ask: Callable[[], T]) -> T:
    """The answer, in as many attempts as a question is worth."""
    for failures in range(len(QUESTION_PAUSES) + 1):
        try:
            return ask()
        except NoConnection:
            raise
        except Unreachable as failure:
            pause(failure, failures, QUESTION_PAUSES)
    raise AssertionError("the last failure is raised")


def pause(failure: Unreachable, failures: int, pauses: Sequence[float]) -> None:
    """Wait before the next attempt. Raises the failure where there is none."""
    if failures >= len(pauses) or failure.wait > PATIENCE:
        raise failure
    time.sleep(max(failure.wait, pauses[failures]))

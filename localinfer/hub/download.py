"""Download of one file over HTTP: resumable, with retries, and verified before it gets its final name.

    remote = request_file_info(name, file, url, digest)     # size, digest and version
    download(name, remote, path, progress)

The received bytes survive interruptions, errors and power failures (see `localinfer.gguf.resumable_file`), and the next
attempt requests the missing ones. The server is not trusted: data is written only at its offset and never beyond the
announced size, and a known digest must match. Without a digest, a resumed response must repeat the last bytes that were
received before, because a server may send another range than it announces. Requests use the client of
`huggingface_hub`, which applies the user's proxies and certificates.
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

from localinfer.errors import LocalInferError, ModelNotFoundError
from localinfer.escaping import printable
from localinfer.gguf import file_descriptors
from localinfer.gguf.reader import open_split
from localinfer.gguf.resumable_file import ResumableFile, resumable_file
from localinfer.hub.model_store import Progress, require_network

if TYPE_CHECKING:
    from hashlib import _Hash

OVERLAP_BYTES = 64 << 10  # requested again and compared when a file without a digest is resumed
CHECKPOINT_BYTES = 64 << 20  # bytes between two flushes to disk
RETRY_DELAYS = (1, 2, 4, 8, 8)  # seconds before each retry; starts again after progress
METADATA_RETRY_DELAYS = (1, 2)  # the same for metadata requests
MAX_RETRY_AFTER = 60  # seconds; longer Retry-After headers are errors
RETRY_STATUSES = (408, 425, 429, 500, 502, 503, 504)
REFUSAL_STATUSES = {
    401: "requires authentication", 403: "denies access", 404: "has no such file", 410: "no longer has this file",
}  # fmt: skip
SHA256 = re.compile(r"[0-9a-f]{64}")
RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")
T = TypeVar("T")


class TransientError(LocalInferError):
    """An error that a retry may solve; `wait` is the number of seconds that the server requested to wait."""

    def __init__(self, message: str, wait: float = 0) -> None:
        super().__init__(message)
        self.wait = wait


class ConnectionFailedError(TransientError):
    """The server cannot be reached; metadata requests are not retried."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """The metadata of a file on a server.

    `file` is its name, and `url` its current location. `digest` is its SHA-256, or git's SHA-1 of a blob, or "" if
    unknown. `version` is an ETag or a date that identifies the content. Without digest and version, a download cannot
    be resumed.
    """

    file: str
    url: str
    size: int
    digest: str = ""
    version: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def identity(self) -> dict[str, str]:
        """The values that must be equal to resume a download."""
        return {"file": self.file, "content": self.digest or self.version}


def request_file_info(name: str, file: str, url: str, digest: str) -> RemoteFile:
    """Request the metadata of a file, whose `digest` may be known. Raises ModelNotFoundError, LocalInferError."""

    def request() -> RemoteFile:
        with open_response(name, url, {}) as response:
            if response.status_code != 200:
                raise_for_status(name, response)
            size = parse_integer(response.headers.get("Content-Length"))
            if not size:
                raise LocalInferError(f"{name}: the server does not send the size of the file")
            tag = response.headers.get("ETag", "")
            version = tag if tag.startswith('"') else response.headers.get("Last-Modified", "")
            return RemoteFile(file, url, size, digest or lfs_digest(response), version)

    return retry_metadata_request(request)


def lfs_digest(response: httpx2.Response) -> str:
    """Return the SHA-256 that the Hugging Face hub sends in a header before it redirects; "" if none."""
    tags = [each.headers.get("X-Linked-ETag", "").strip('"') for each in [*response.history, response]]
    return next(filter(SHA256.fullmatch, tags), "")


def download(name: str, remote: RemoteFile, path: Path, progress: Progress, previous: int = 0, total: int = 0) -> None:
    """Download the file to `path`. `progress` counts its bytes on top of `before`, out of `total`.

    Raises LocalInferError; the received bytes then remain for the next attempt, unless they are wrong.
    """
    is_resumable = bool(remote.digest or remote.version)
    with resumable_file(path, remote.size, remote.identity, replace=True, keep_on_error=is_resumable) as file:
        partial = PartialDownload(name, remote, file)
        try:
            for n_received in receive_missing(name, remote, partial):
                progress("download", previous + n_received, total or remote.size)
        except BaseException:
            with suppress(LocalInferError):  # the disk may be full; the first error already reports it
                partial.checkpoint()
            raise
        partial.verify()


class PartialDownload:
    """The bytes received so far, from the start of the file, and their digest."""

    def __init__(self, name: str, remote: RemoteFile, file: ResumableFile) -> None:
        self._name, self._remote, self._file = name, remote, file
        self._reset()
        for data in file.read_saved():
            self._add(data)

    def write(self, data: bytes) -> None:
        """Append bytes. Raises LocalInferError if the file becomes larger than announced."""
        if self.offset + len(data) > self._remote.size:
            raise LocalInferError(f"{self._name}: the server sends more than the announced {self._remote.size:,} bytes")
        self._file.file.write_at(self.offset, data)
        self._add(data)
        if self.offset - self._file.n_bytes >= CHECKPOINT_BYTES:
            self.checkpoint()

    def read(self, start: int) -> bytes:
        """Return the received bytes from an offset on."""
        return file_descriptors.read_at(self._file.file.descriptor, self.offset - start, start)

    def checkpoint(self) -> None:
        """Flush the received bytes to disk, and record their number."""
        if self.offset > self._file.n_bytes:
            self._file.save_progress(self.offset, self.offset)

    def discard(self) -> None:
        """Discard all received bytes, because the server starts again."""
        self._file.discard()
        self._reset()

    def verify(self) -> None:
        """Raise LocalInferError, and discard all bytes, if the digest is wrong, or the file is not a complete GGUF
        file.
        """
        try:
            if self._remote.digest:
                self._verify_digest()
            else:
                self._verify_gguf()
        except LocalInferError:
            self.discard()
            raise

    def _verify_digest(self) -> None:
        expected, actual = self._remote.digest, self._digest.hexdigest()
        if actual != expected:
            kind = "sha256" if len(actual) == 64 else "git sha1"
            raise LocalInferError(f"{self._name}: {kind} mismatch: expected {expected}, got {actual}")

    def _verify_gguf(self) -> None:
        path = self._file.file.temporary
        try:
            open_split(path)
        except LocalInferError as error:
            problem = str(error).removeprefix(f"{printable(str(path))}: ")
            raise LocalInferError(f"{self._name}: the server does not send a GGUF file: {problem}") from None

    def _reset(self) -> None:
        self.offset = 0
        self._digest = new_digest(self._remote)

    def _add(self, data: bytes) -> None:
        self._digest.update(data)
        self.offset += len(data)


def new_digest(remote: RemoteFile) -> "_Hash":
    """Return a new SHA-256, or the SHA-1 of a git blob, depending on the length of the known digest."""
    if len(remote.digest) == 40:
        return hashlib.sha1(b"blob %d\0" % remote.size, usedforsecurity=False)
    return hashlib.sha256()


def receive_missing(name: str, remote: RemoteFile, partial: PartialDownload) -> Iterator[int]:
    """Request the missing bytes with retries, and yield the number of bytes received so far."""
    failures = 0
    yield partial.offset
    while partial.offset < remote.size:
        start = partial.offset
        try:
            for data in request_rest(name, remote, partial):
                partial.write(data)
                yield partial.offset
            if partial.offset < remote.size:
                raise TransientError(f"{name}: the server closed the connection")
        except TransientError as failure:
            failures = 0 if partial.offset > start else failures
            wait_before_retry(failure, failures, RETRY_DELAYS)
            failures += 1


def request_rest(name: str, remote: RemoteFile, partial: PartialDownload) -> Iterator[bytes]:
    """Yield the data of one response, from the current offset; the server may start from the beginning."""
    headers, start = dict(remote.headers), partial.offset
    if partial.offset:
        start -= 0 if remote.digest else min(OVERLAP_BYTES, start)
        headers["Range"] = f"bytes={start}-"
        if remote.version:
            headers["If-Range"] = remote.version
    with open_response(name, remote.url, headers) as response:
        status = response.status_code
        if status not in (200, 206, 416):
            raise_for_status(name, response)
        if status != 206 and partial.offset:  # the server does not support ranges
            partial.discard()
            start = 0
        if status == 416:
            raise TransientError(f"{name}: {response.url.host} does not have the requested range")
        different = LocalInferError(f"{name}: {response.url.host} sends a different file or range than announced")
        if content_range(response, remote.size) != (start, remote.size):
            raise different
        received = partial.read(start)
        for data in response.iter_raw():
            n_compared = min(len(data), len(received))
            if data[:n_compared] != received[:n_compared]:
                partial.discard()
                raise different
            received = received[n_compared:]
            if n_compared < len(data):
                yield data[n_compared:]


def content_range(response: httpx2.Response, expected_size: int) -> tuple[int, int] | None:
    """Return the start offset of a response and the size of the whole file; None for an invalid header, or if the
    response ends before the file does.
    """
    if response.status_code == 200:
        return 0, parse_integer(response.headers.get("Content-Length")) or expected_size
    match = RANGE.fullmatch(response.headers.get("Content-Range", ""))
    start, end, size = map(int, match.groups()) if match else (0, 0, 0)
    return (start, size) if match and end == size - 1 else None


@contextmanager
def open_response(name: str, url: str, headers: Mapping[str, str]) -> Iterator[httpx2.Response]:
    """Open the response to a GET request, after redirects, without reading its body.

    Raises TransientError for errors that may pass, LocalInferError for permanent ones.
    """
    require_network(name)
    headers = {"Accept-Encoding": "identity", **headers}
    try:
        with get_session().stream("GET", url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT) as response:
            if response.status_code in RETRY_STATUSES:
                wait = parse_integer(response.headers.get("Retry-After")) or 0
                raise TransientError(f"{name}: {response.url.host} answers {status_line(response)}", wait)
            yield response
    except (httpx2.UnsupportedProtocol, httpx2.TooManyRedirects, httpx2.InvalidURL) as error:
        raise LocalInferError(f"{name}: {reason(error)}") from None
    except httpx2.TransportError as error:
        raise transport_error(f"{name}: {reason(error)}", error) from None


def transport_error(message: str, error: httpx2.HTTPError) -> TransientError:
    return (ConnectionFailedError if isinstance(error, httpx2.ConnectError) else TransientError)(message)


def raise_for_status(name: str, response: httpx2.Response) -> NoReturn:
    """Raise the error for an unsuccessful response."""
    status, host = response.status_code, response.url.host
    if status in REFUSAL_STATUSES:
        message = printable(response.headers.get("X-Error-Message", ""), 200)
        raise ModelNotFoundError(f"{name}: {host} {REFUSAL_STATUSES[status]} ({status}){message and f': {message}'}")
    raise LocalInferError(f"{name}: {host} answers {status_line(response)}")


def status_line(response: httpx2.Response) -> str:
    return f"{response.status_code} {response.reason_phrase}".strip()


def reason(error: Exception) -> str:
    """Return a short description of a network error."""
    if isinstance(error, httpx2.TimeoutException):
        return f"no answer for {constants.HF_HUB_DOWNLOAD_TIMEOUT} s"
    return printable(str(error) or type(error).__name__, 200)


def parse_integer(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"[0-9]{1,18}", text) else None


def retry_metadata_request(request: Callable[[], T]) -> T:
    """Call `request`, again after each transient error until the delays are used up.

    A failed connection is not retried: there is no network, or the hub cannot be reached. Raises the last failure.
    """
    for failures in range(len(METADATA_RETRY_DELAYS) + 1):
        try:
            return request()
        except ConnectionFailedError:
            raise
        except TransientError as failure:
            wait_before_retry(failure, failures, METADATA_RETRY_DELAYS)
    raise AssertionError("the last failure is raised")


def wait_before_retry(failure: TransientError, failures: int, pauses: Sequence[float]) -> None:
    """Sleep before the next attempt. Raises the failure if there is none left."""
    if failures >= len(pauses) or failure.wait > MAX_RETRY_AFTER:
        raise failure
    time.sleep(max(failure.wait, pauses[failures]))

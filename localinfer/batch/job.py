"""A batch job: which requests already have a response in the output file, and which are pending.

The `id` of a response consists of two digests: one of the model and the options, and one of the request. The output
file alone therefore defines the state of a job. An interrupted job resumes with the pending requests, requests can be
added to the input, and an output of another model, other options or another input is detected.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from localinfer.batch.input_file import MAX_SHOWN_ID_CHARS, Request
from localinfer.batch.output_file import LineSpan, OutputFile
from localinfer.errors import LocalInferError, UsageError
from localinfer.escaping import printable
from localinfer.gguf.reader import GGUF
from localinfer.options import FLAGS, Options
from localinfer.runtime.snapshot import model_digest

PREFIX = "batch_req_"
LINE_START = b'{"id": "' + PREFIX.encode()  # of each response: see `Job.format_line`
DIGEST_BYTES = 4
SPEED_OPTIONS = (
    "threads",
    "threads_batch",
    "batch_size",
    "ubatch_size",
    "parallel",
    "mmap",
    "memory",
    "mlock",
    "tune",
    "prefix_store",
    "prefix_store_size",
    "cache_prompt",
)  # change no response
SPEED_SECTIONS = ("speculative", "draft")  # sections of such options
RESTART_HINT = "--restart starts over and discards the existing output"


@dataclass(frozen=True, slots=True)
class Response:
    """The response to a request, with the HTTP status and the body that the server would send."""

    request: Request
    status: int
    body: dict[str, Any]

    @property
    def has_failed(self) -> bool:
        return self.status != 200


@dataclass
class Job:
    """The requests of a batch and the state of their responses. Line numbers identify the requests."""

    requests: Sequence[Request]
    digest: str  # of the model and the options
    locations: dict[int, LineSpan] = field(default_factory=dict)  # request -> its response in the output file
    failed: set[int] = field(default_factory=set)  # requests whose response is an error

    def __post_init__(self) -> None:
        self._by_id = {self.response_id(request): request for request in self.requests}

    def response_id(self, request: Request) -> str:
        return f"{PREFIX}{self.digest}{request.digest}"

    def resume(self, output: OutputFile) -> None:
        """Read the responses of earlier runs from the output, and truncate what a killed process or a power failure
        left incomplete.

        Raises UsageError if the output belongs to another job or is not one of `batch`, LocalInferError if a request
        has two responses. The file is then unchanged.
        """
        for span, line in output.lines():
            if self.locations and b"\0" in line:  # after a power failure; JSON has no such bytes
                output.size = span.start
                break
            request, failed = self._parse_line(line, output.path)
            if request.number in self.locations:
                message = f"damaged: there are two responses to line {request.number}"
                raise LocalInferError(f"{output.path}: {message}; {RESTART_HINT}")
            self._record(request, span, failed)
        self._require_own_tail(output)
        output.truncate()

    def pending(self) -> list[Request]:
        """Return the requests without a response.

        Requests with a common prefix are adjacent, so that the prefix cache still contains the prefix's KV pages.
        """
        waiting = [request for request in self.requests if request.number not in self.locations]
        return sorted(waiting, key=lambda request: request.prefix_sort_key)

    def add(self, response: Response, output: OutputFile) -> None:
        """Append a response to the output and record its location."""
        start, line = output.size, self.format_line(response)
        output.append(line)
        self._record(response.request, LineSpan(start, len(line)), response.has_failed)

    def format_line(self, response: Response) -> bytes:
        """Return the response as a line of OpenAI's batch output format. `error` is set if the request failed."""
        id = self.response_id(response.request)
        http_response = {"status_code": response.status, "request_id": id, "body": response.body}
        api_error = response.body["error"] if response.has_failed else {}
        code = api_error.get("code") or api_error.get("type")
        error = {"code": code, "message": api_error["message"]} if api_error else None
        line = {"id": id, "custom_id": response.request.custom_id, "response": http_response, "error": error}
        return json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n"

    def remove_failed(self, output: OutputFile) -> int:
        """Remove the responses of failed requests, so that they are pending again. Returns their number."""
        count = len(self.failed)
        for number in self.failed:
            del self.locations[number]
        self.failed.clear()
        self._rewrite(output, sorted(self.locations, key=lambda number: self.locations[number]))
        return count

    def sort_output(self, output: OutputFile) -> None:
        """Sort the lines of the output by the order of their requests."""
        self._rewrite(output, sorted(self.locations))

    def _rewrite(self, output: OutputFile, numbers: Sequence[int]) -> None:
        """Keep only the responses to these requests in the output, in this order."""
        output.rewrite([self.locations[number] for number in numbers])
        start = 0
        for number in numbers:
            self.locations[number] = LineSpan(start, self.locations[number].size)
            start += self.locations[number].size

    def _record(self, request: Request, span: LineSpan, failed: bool) -> None:
        self.locations[request.number] = span
        if failed:
            self.failed.add(request.number)

    def _require_own_tail(self, output: OutputFile) -> None:
        """Raise UsageError unless what follows the last complete response can be the start of another one."""
        start = LINE_START + self.digest.encode()
        tail = output.incomplete_line(len(start))
        if self.locations:  # zeros of a power failure may follow a response
            tail = tail.partition(b"\0")[0]
        if not start.startswith(tail):
            raise UsageError(f"{output.path}: exists and does not end with a batch response; {RESTART_HINT}")

    def _parse_line(self, line: bytes, path: Path) -> tuple[Request, bool]:
        """Return the request that a line of the output belongs to, and whether it failed.

        Raises UsageError if the line is not a response of this job.
        """
        try:
            response = json.loads(line)
            id, custom_id, failed = str(response["id"]), str(response["custom_id"]), response["error"] is not None
        except (ValueError, KeyError, TypeError, RecursionError):
            id = ""
        if not id.startswith(PREFIX):
            raise UsageError(f"{path}: exists and has lines that are not batch responses; {RESTART_HINT}")
        if request := self._by_id.get(id):
            return request, failed
        cause = "belongs to another or a changed input"
        if not id.startswith(PREFIX + self.digest):
            cause = "was made with another model or other options"
        custom_id = printable(custom_id, MAX_SHOWN_ID_CHARS)
        raise UsageError(f"{path}: the response to {custom_id} {cause}; {RESTART_HINT}")


def job_digest(f: GGUF, options: Options) -> str:
    """Return a digest of the model, the options that change responses, and the content of files that options name."""
    values = {name: value for name, value in asdict(options).items() if value != FLAGS[name].default}
    digest = blake2b(model_digest(f).encode(), digest_size=DIGEST_BYTES)
    for name in sorted(values):
        if name in SPEED_OPTIONS or FLAGS[name].section in SPEED_SECTIONS:
            continue
        digest.update(repr((name, values[name])).encode())
        if name.endswith("_file") or name == "architecture":
            digest.update(file_content(str(values[name])))
    return digest.hexdigest()


def file_content(path: str) -> bytes:
    """Return the file's bytes; empty if it cannot be read, because the option that uses it reports the error."""
    try:
        return Path(path).expanduser().read_bytes()
    except (OSError, ValueError, RuntimeError):
        return b""


def require_model(requests: Sequence[Request], names: Sequence[str], where: str) -> None:
    """Raise LocalInferError if a request names a model other than these."""
    for number, model in requested_models(requests):
        if model.removesuffix(":latest") not in names:
            raise LocalInferError(
                f"{where}: line {number} requests the model {printable(model, MAX_SHOWN_ID_CHARS)}, not {names[0]}; "
                "--any-model ignores the model names"
            )


def requested_models(requests: Sequence[Request]) -> Iterator[tuple[int, str]]:
    """Yield (line number, model) for each request that names a model."""
    for request in requests:
        if isinstance(model := request.body.get("model"), str) and model:
            yield request.number, model

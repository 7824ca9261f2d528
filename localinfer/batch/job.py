"""A batch job: which requests have an answer in the output already, and which are left.

Each answer's `id` is made of two digests: one of the model and the options, one of the request. So the output alone
tells what is done: a job that was interrupted goes on with what is left, requests can be added to the input, and an
output that was made with another model, other options or another input is noticed.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from localinfer.batch.output import Output, Place
from localinfer.batch.reading import LONGEST_ID, Request
from localinfer.engine.snapshot import model_digest
from localinfer.errors import LocalInferError, UsageError
from localinfer.files.gguf import GGUF
from localinfer.options import FLAGS, Options
from localinfer.text import printable

PREFIX = "batch_req_"
DIGEST_BYTES = 4
FOR_SPEED = ("threads", "threads_batch", "batch_size", "ubatch_size", "parallel")  # options that change no answer,
GUESSES = ("speculation", "draft")  # nor do those of these sections
RESTART_HINT = "--restart begins anew, and drops what is there"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request, with the HTTP status and the body that the server would send."""

    request: Request
    status: int
    body: dict[str, Any]

    @property
    def failed(self) -> bool:
        return self.status != 200


@dataclass
class Job:
    """The requests of a batch, and what is known of their answers. Requests are known by the numbers of their lines."""

    requests: Sequence[Request]
    digest: str  # of the model and the options
    places: dict[int, Place] = field(default_factory=dict)  # where the output has the answer to a request
    failed: set[int] = field(default_factory=set)  # requests whose answer is an error

    def __post_init__(self) -> None:
        self._by_id = {self.id_of(request): request for request in self.requests}

    def id_of(self, request: Request) -> str:
        return f"{PREFIX}{self.digest}{request.digest}"

    def resume(self, output: Output) -> None:
        """Note the answers that earlier runs have left in the output, and cut off an unfinished last line.

        UsageError for an output that belongs to another job, LocalInferError for two answers to one request.
        """
        for place, line in output.lines():
            request, failed = self._answered(line, output.path)
            if request.number in self.places:
                problem = f"damaged: there are two answers to line {request.number}"
                raise LocalInferError(f"{output.path}: {problem}; {RESTART_HINT}")
            self._note(request, place, failed)
        output.cut()

    def left(self) -> list[Request]:
        """The requests without an answer. Those that begin with the same text stand next to each other: what they have
        in common is then still in the model's memory, and not computed again."""
        waiting = [request for request in self.requests if request.number not in self.places]
        return sorted(waiting, key=lambda request: request.beginning)

    def take(self, answer: Answer, output: Output) -> None:
        """Append an answer to the output, and note it."""
        start, line = output.size, self.line_of(answer)
        output.append(line)
        self._note(answer.request, Place(start, len(line)), answer.failed)

    def line_of(self, answer: Answer) -> bytes:
        """The answer as a line of OpenAI's output files. Where the request failed, `error` says why."""
        id = self.id_of(answer.request)
        response = {"status_code": answer.status, "request_id": id, "body": answer.body}
        problem = answer.body["error"] if answer.failed else {}
        error = {"code": problem["code"] or problem["type"], "message": problem["message"]} if problem else None
        line = {"id": id, "custom_id": answer.request.custom_id, "response": response, "error": error}
        return json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n"

    def forget_failed(self, output: Output) -> int:
        """Remove the answers of requests that failed, so that they are asked again; returns how many these are."""
        count = len(self.failed)
        for number in self.failed:
            del self.places[number]
        self.failed.clear()
        self._rewrite(output, sorted(self.places, key=lambda number: self.places[number]))
        return count

    def put_in_order(self, output: Output) -> None:
        """Sort the lines of the output by the order of their requests."""
        self._rewrite(output, sorted(self.places))

    def _rewrite(self, output: Output, numbers: Sequence[int]) -> None:
        """Leave only the answers to these requests in the output, in this order."""
        output.rewrite([self.places[number] for number in numbers])
        start = 0
        for number in numbers:
            self.places[number] = Place(start, self.places[number].size)
            start += self.places[number].size

    def _note(self, request: Request, place: Place, failed: bool) -> None:
        self.places[request.number] = place
        if failed:
            self.failed.add(request.number)

    def _answered(self, line: bytes, path: Path) -> tuple[Request, bool]:
        """The request that a line of the output answers, and whether it failed. UsageError if the line is not an answer
        of this job."""
        try:
            answer = json.loads(line)
            id, custom_id, failed = str(answer["id"]), str(answer["custom_id"]), answer["error"] is not None
        except (ValueError, KeyError, TypeError, RecursionError):
            id = ""
        if not id.startswith(PREFIX):
            raise UsageError(f"{path}: is there, and not all of its lines are answers of a batch; {RESTART_HINT}")
        if request := self._by_id.get(id):
            return request, failed
        what = "of another input, or of one that was changed"
        if not id.startswith(PREFIX + self.digest):
            what = "of another model, or was given with other options"
        raise UsageError(f"{path}: the answer to {printable(custom_id, LONGEST_ID)} is {what}; {RESTART_HINT}")


def job_digest(f: GGUF, options: Options) -> str:
    """A digest of the model, of all options that change answers, and of the contents of files that options name."""
    values = {name: value for name, value in asdict(options).items() if value != FLAGS[name].default}
    digest = blake2b(model_digest(f).encode(), digest_size=DIGEST_BYTES)
    for name in sorted(values):
        if name in FOR_SPEED or FLAGS[name].section in GUESSES:
            continue
        digest.update(repr((name, values[name])).encode())
        if name.endswith("_file") or name == "architecture":
            digest.update(content_of(str(values[name])))
    return digest.hexdigest()


def content_of(path: str) -> bytes:
    """The file's bytes; none of a file that cannot be read: whoever uses the file reports that."""
    try:
        return Path(path).expanduser().read_bytes()
    except (OSError, ValueError, RuntimeError):
        return b""


def require_model(requests: Sequence[Request], names: Sequence[str], where: str) -> None:
    """Raise LocalInferError if a request asks for a model that has none of these names."""
    for number, asked in models_asked(requests):
        if asked.removesuffix(":latest") not in names:
            raise LocalInferError(
                f"{where}: line {number} asks for the model {printable(asked, LONGEST_ID)}, and this is {names[0]}; "
                "--any-model has it answer all the same")


def models_asked(requests: Sequence[Request]) -> Iterator[tuple[int, str]]:
    """(number of the line, model) for each request that names a model."""
    for request in requests:
        if isinstance(asked := request.body.get("model"), str) and asked:
            yield request.number, asked

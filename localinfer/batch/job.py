"""What ties answers to requests, the model and its options: a job that was ended goes on with what is left.

Each answer's `id` is made of two digests: of model and options, and of the request. So the file of answers alone tells
what is done, requests can be added to the input, and what does not belong together is seen.
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
FOR_SPEED = ("threads", "threads_batch", "batch_size", "ubatch_size", "parallel")  # options that no answer depends on
ANEW = "--restart begins anew, and drops what is there"


@dataclass(frozen=True, slots=True)
class Answer:
    """To a request, as a server would give it."""

    request: Request
    status: int
    body: dict[str, Any]

    @property
    def failed(self) -> bool:
        return self.status != 200


@dataclass
class Job:
    """`places`: of the answers that are in the output, by the numbers of their requests' lines."""

    requests: Sequence[Request]
    digest: str
    places: dict[int, Place] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._by_id = {self.id_of(request): request for request in self.requests}

    def id_of(self, request: Request) -> str:
        return f"{PREFIX}{self.digest}{request.digest}"

    def resume(self, output: Output) -> None:
        """See what is done already. UsageError for a file that is not of this job."""
        for place, line in output.lines():
            request, failed = self._answered(line, output.path)
            if request.number in self.places:
                raise LocalInferError(f"{output.path}: damaged: there are two answers to line {request.number}; {ANEW}")
            self._note(request, place, failed)
        output.cut()

    def left(self) -> list[Request]:
        """What is to be asked, with those next to each other that begin the same: nothing needs to be read twice."""
        waiting = [request for request in self.requests if request.number not in self.places]
        return sorted(waiting, key=lambda request: request.beginning)

    def take(self, answer: Answer, output: Output) -> None:
        start, line = output.size, self.line_of(answer)
        output.append(line)
        self._note(answer.request, Place(start, len(line)), answer.failed)

    def line_of(self, answer: Answer) -> bytes:
        """In the format of OpenAI's output files; of an answer that failed, `error` says so, too."""
        id = self.id_of(answer.request)
        response = {"status_code": answer.status, "request_id": id, "body": answer.body}
        problem = answer.body["error"] if answer.failed else {}
        error = {"code": problem["code"] or problem["type"], "message": problem["message"]} if problem else None
        line = {"id": id, "custom_id": answer.request.custom_id, "response": response, "error": error}
        return json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n"

    def forget_failed(self, output: Output) -> int:
        """Have what failed asked once more; how many that are."""
        count = len(self.failed)
        for number in self.failed:
            del self.places[number]
        self.failed.clear()
        self._rewrite(output, sorted(self.places, key=lambda number: self.places[number]))
        return count

    def put_in_order(self, output: Output) -> None:
        """Have the answers in the order of their requests."""
        self._rewrite(output, sorted(self.places))

    def _rewrite(self, output: Output, numbers: Sequence[int]) -> None:
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
        """Which request a line of the output answers, and whether that failed."""
        try:
            answer = json.loads(line)
            id, custom_id, failed = str(answer["id"]), str(answer["custom_id"]), answer["error"] is not None
        except (ValueError, KeyError, TypeError, RecursionError):
            id = ""
        if not id.startswith(PREFIX):
            raise UsageError(f"{path}: is there, and not all of it are answers of a batch; {ANEW}")
        if request := self._by_id.get(id):
            return request, failed
        what = "of another input, or of one that was changed"
        if not id.startswith(PREFIX + self.digest):
            what = "of another model, or was given with other options"
        raise UsageError(f"{path}: the answer to {printable(custom_id, LONGEST_ID)} is {what}; {ANEW}")


def job_digest(f: GGUF, options: Options) -> str:
    """Of the model, and of all options that an answer depends on, with what is in the files that they name."""
    values = {name: value for name, value in asdict(options).items() if name not in FOR_SPEED}
    digest = blake2b(model_digest(f).encode(), digest_size=DIGEST_BYTES)
    for name in sorted(name for name, value in values.items() if value != FLAGS[name].default):
        digest.update(repr((name, values[name])).encode())
        if name.endswith("_file") or name == "architecture":
            digest.update(content_of(str(values[name])))
    return digest.hexdigest()


def content_of(path: str) -> bytes:
    """What cannot be read is told of where it is used."""
    try:
        return Path(path).expanduser().read_bytes()
    except (OSError, ValueError, RuntimeError):
        return b""


def require_model(requests: Sequence[Request], names: Sequence[str], where: str) -> None:
    """LocalInferError if a request asks for another model than one that has these names."""
    for number, asked in models_asked(requests):
        if asked.removesuffix(":latest") not in names:
            raise LocalInferError(
                f"{where}: line {number} asks for the model {printable(asked, LONGEST_ID)}, and this is {names[0]}; "
                "--any-model has it answer all the same")


def models_asked(requests: Sequence[Request]) -> Iterator[tuple[int, str]]:
    for request in requests:
        if isinstance(asked := request.body.get("model"), str) and asked:
            yield request.number, asked

"""A Ray cluster answers the requests of a batch: Ray Data hands them to actors, each of which has a model of its own.

Ray restarts an actor that died, and has it compute again what was lost. So a request may be answered twice: then the
first answer counts. A request without an answer is an error. Needs the extra `localinfer[ray]`.
"""

import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Self

from localinfer.batch.job import Answer, job_digest
from localinfer.batch.reading import Request
from localinfer.errors import LocalInferError, UsageError
from localinfer.options import Options
from localinfer.text import printable

if TYPE_CHECKING:
    from localinfer.model import Model

MOST_AT_ONCE = 16  # requests that an actor is given: those that it has not handed back when it dies are lost
ROUNDS = 4  # an actor is given fewer if it would not come back for more so often: else some end long before others
CONNECT_SECONDS = 10.0
LONGEST_ERROR = 300  # characters of Ray's message that are shown
OWN_SETTINGS: dict[str, dict[str, Any]] = {"local": {"include_dashboard": False, "object_store_memory": 256 << 20}}

Row = dict[str, Any]


def require_extra() -> None:
    missing = [name for name in ("ray", "pyarrow") if find_spec(name) is None]
    if missing:
        raise UsageError(f"--ray: needs {' and '.join(missing)}: python -m pip install 'localinfer[ray]'")


class Cluster:
    """The cluster at an address, such as 10.0.0.1:6379, or "local" for one on this machine.

    As many `workers`, or one for each machine if that is 0, load a model of this name or path, which each machine looks
    up for itself; LocalInferError if what it finds has another `digest`.
    """

    def __init__(self, address: str, name: str, options: Options, digest: str, workers: int = 0) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray
        import ray.data

        logging.getLogger("ray.data").setLevel(logging.ERROR)
        self._redirection = redirect_stdout(sys.stderr)  # Ray prints that an actor died
        self._redirection.__enter__()
        terminate = signal.getsignal(signal.SIGTERM)
        with errors_in_one_line(f"--ray {address}"):
            require_listening(address)
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **OWN_SETTINGS.get(address, {}))
        signal.signal(signal.SIGTERM, terminate)  # Ray has replaced it
        nodes: list[Row] = ray.nodes()
        self.workers = workers or sum(node["Alive"] and node["Resources"].get("CPU", 0) > 0 for node in nodes)
        self._arguments = name, asdict(options), digest

    def each(self, requests: Iterable[Request]) -> Generator[Answer, None, None]:
        """The answers, in the order in which they come. LocalInferError for what ends the whole job."""
        waiting = {request.number: request for request in requests}
        for request in [*waiting.values()]:
            if request.problem:
                del waiting[request.number]
                yield Answer(request, request.problem.status, {"error": request.problem.error})
        with errors_in_one_line("ray"):
            for row in self._computed([as_row(request) for request in waiting.values()]):
                if row["number"] in waiting:
                    yield Answer(waiting.pop(row["number"]), row["status"], json.loads(row["body"]))
        if waiting:
            raise LocalInferError(f"ray: {len(waiting)} requests got no answer")

    def _computed(self, rows: list[Row]) -> Iterable[Row]:
        if not rows:
            return []
        import ray.data

        ray.data.DataContext.get_current().enable_progress_bars = False
        at_once = min(MOST_AT_ONCE, -(-len(rows) // (ROUNDS * self.workers)))
        tasks = ray.data.from_items(rows, override_num_blocks=-(-len(rows) // at_once))
        answers: Iterable[Row] = tasks.map_batches(
            Worker, fn_constructor_args=self._arguments, batch_size=None, batch_format="numpy",
            compute=ray.data.ActorPoolStrategy(size=self.workers), num_cpus=1,
        ).iter_rows()  # fmt: skip
        return answers

    def close(self) -> None:
        import ray

        ray.shutdown()
        self._redirection.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def require_listening(address: str) -> None:
    """Raise OSError if nobody listens at HOST:PORT: Ray itself would try for minutes, and then end the process."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()


class Worker:
    """What an actor runs: a model that answers the requests that it is given, some at a time."""

    def __init__(self, name: str, options: Mapping[str, Any], digest: str) -> None:
        from localinfer.batch.answering import Answering

        def load(word: str) -> "Model":
            import localinfer
            from localinfer.models import registry
            from localinfer.models.fetch import pull

            try:
                registry.find(word)
            except registry.NotFetched:
                pull(word)
            model = localinfer.load(word, **options)
            if job_digest(model.file, model.options) != digest:
                raise LocalInferError(f"{word}: is another file there than here")
            return model

        self._answering = Answering(load, name)

    def __call__(self, rows: Mapping[str, Any]) -> Row:
        names = ("number", "custom_id", "url", "body")
        requests = [
            Request(int(number), str(custom_id), str(url), json.loads(body))
            for number, custom_id, url, body in zip(*(rows[name] for name in names), strict=True)
        ]
        answers = list(self._answering.each(requests))
        return {
            "number": [answer.request.number for answer in answers],
            "status": [answer.status for answer in answers],
            "body": [json.dumps(answer.body) for answer in answers],
        }


def as_row(request: Request) -> Row:
    body = json.dumps(request.body)
    return {"number": request.number, "custom_id": request.custom_id, "url": request.url, "body": body}


@contextmanager
def errors_in_one_line(what: str) -> Iterator[None]:
    """Turn errors of Ray into a LocalInferError of one line that begins with `what`."""
    import ray.exceptions

    try:
        yield
    except LocalInferError:
        raise
    except (ray.exceptions.RayError, OSError, RuntimeError, ValueError) as error:
        *_, last = str(error).strip().splitlines() or [type(error).__name__]  # behind the actor's traceback
        raise LocalInferError(f"{what}: {printable(last, LONGEST_ERROR)}") from None

"""Many machines that answer requests: a Ray cluster, through Ray Data, with an engine in each of its actors.

Ray runs an actor that died anew, and has what was lost computed once more. That each request is answered once is seen
to here: of two answers the first one counts, and what got none is an error. Needs the extra `localinfer[ray]`.
"""

import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping
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

MOST_AT_ONCE = 16  # requests that an actor is given: what it has not handed back when it dies is computed once more
ROUNDS = 4  # ... and fewer of them, so that each actor comes back for more so often, and none is left waiting
PATIENCE = 10.0  # seconds
LONGEST = 300  # characters of what Ray says is wrong
OF_ITS_OWN: dict[str, dict[str, Any]] = {"local": {"include_dashboard": False, "object_store_memory": 256 << 20}}

Row = dict[str, Any]


def require_extra() -> None:
    missing = [name for name in ("ray", "pyarrow") if find_spec(name) is None]
    if missing:
        raise UsageError(f"--ray: needs {' and '.join(missing)}: python -m pip install 'localinfer[ray]'")


class Cluster:
    """The cluster at an address, such as 10.0.0.1:6379, or "local" for one on this machine.

    So many `workers`, or one for each machine, have a model of this name or path, which is looked up where they are.
    """

    def __init__(self, address: str, name: str, options: Options, digest: str, workers: int = 0) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray
        import ray.data

        logging.getLogger("ray.data").setLevel(logging.ERROR)
        self._aside = redirect_stdout(sys.stderr)  # where Ray tells of actors that died
        self._aside.__enter__()
        terminate = signal.getsignal(signal.SIGTERM)
        with told(f"--ray {address}"):
            require_listening(address)
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **OF_ITS_OWN.get(address, {}))
        signal.signal(signal.SIGTERM, terminate)  # Ray has put its own there
        nodes: list[Row] = ray.nodes()
        self.workers = workers or sum(node["Alive"] and node["Resources"].get("CPU", 0) > 0 for node in nodes)
        self._arguments = name, asdict(options), digest

    def each(self, requests: Iterable[Request]) -> Iterator[Answer]:
        """The answers, as they come. LocalInferError for what ends all of it."""
        waiting = {request.number: request for request in requests}
        for request in [*waiting.values()]:
            if request.problem:
                del waiting[request.number]
                yield Answer(request, request.problem.status, {"error": request.problem.error})
        with told("ray"):
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
        self._aside.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def require_listening(address: str) -> None:
    """Ray itself tries for minutes, and then ends the process."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), PATIENCE).close()


class Worker:
    """What is in an actor: a model that answers some requests at a time."""

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
def told(what: str) -> Iterator[None]:
    """What Ray finds wrong becomes one line."""
    import ray.exceptions

    try:
        yield
    except LocalInferError:
        raise
    except (ray.exceptions.RayError, OSError, RuntimeError, ValueError) as error:
        *_, last = str(error).strip().splitlines() or [type(error).__name__]  # behind the trace of an actor
        raise LocalInferError(f"{what}: {printable(last, LONGEST)}") from None

"""Runs the requests of a batch on a Ray cluster. Ray Data distributes them to actors, each of which loads the model.

Ray restarts an actor that died and repeats its lost tasks. A request may therefore get two responses, of which the
first counts. A request without a response is an error. Needs the extra `localinfer[ray]`.
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

from localinfer.batch.input_file import Request
from localinfer.batch.job import Response, job_digest
from localinfer.errors import LocalInferError, UsageError
from localinfer.escaping import printable
from localinfer.options import Options

if TYPE_CHECKING:
    from localinfer.model import Model

MAX_TASK_REQUESTS = 16  # requests per task: if an actor dies, those of its unfinished task are lost and repeated
MIN_TASKS_PER_WORKER = 4  # tasks are smaller if needed, so that all actors finish at about the same time
CONNECT_SECONDS = 10.0
MAX_ERROR_CHARS = 300  # of Ray's message
RAY_SETTINGS: dict[str, dict[str, Any]] = {"local": {"include_dashboard": False, "object_store_memory": 256 << 20}}

Row = dict[str, Any]


def require_extra() -> None:
    """Raise UsageError if Ray is not installed."""
    missing = [name for name in ("ray", "pyarrow") if find_spec(name) is None]
    if missing:
        raise UsageError(f"--ray: {' and '.join(missing)} not installed; run python -m pip install 'ray[data]'")


class RayCluster:
    """A connection to a Ray cluster at an address such as 10.0.0.1:6379, or "local" for one on this machine.

    `n_workers` actors, or one for each machine if 0, load the model of this name or path. Each machine resolves the
    name itself and raises LocalInferError if its file or options have another `digest`.
    """

    def __init__(self, address: str, name: str, options: Options, digest: str, n_workers: int = 0) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray
        import ray.data

        logging.getLogger("ray.data").setLevel(logging.ERROR)
        self._redirection = redirect_stdout(sys.stderr)  # Ray prints messages about dead actors
        self._redirection.__enter__()
        terminate = signal.getsignal(signal.SIGTERM)
        with convert_ray_errors(f"--ray {address}"):
            require_listening(address)
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **RAY_SETTINGS.get(address, {}))
        signal.signal(signal.SIGTERM, terminate)  # Ray replaces the handler
        nodes: list[Row] = ray.nodes()
        self.n_workers = n_workers or sum(node["Alive"] and node["Resources"].get("CPU", 0) > 0 for node in nodes)
        self._worker_arguments = name, asdict(options), digest

    def responses(self, requests: Iterable[Request]) -> Generator[Response, None, None]:
        """Yield the responses as they arrive. Raises LocalInferError for an error that ends the whole job."""
        waiting = {request.number: request for request in requests}
        for request in [*waiting.values()]:
            if request.error:
                del waiting[request.number]
                yield Response(request, request.error.status, {"error": request.error.error})
        with convert_ray_errors("ray"):
            for row in self._compute([to_row(request) for request in waiting.values()]):
                if row["number"] in waiting:
                    yield Response(waiting.pop(row["number"]), row["status"], json.loads(row["body"]))
        if waiting:
            raise LocalInferError(f"ray: {len(waiting)} requests got no response")

    def _compute(self, rows: list[Row]) -> Iterable[Row]:
        if not rows:
            return []
        import ray.data

        ray.data.DataContext.get_current().enable_progress_bars = False
        n_per_task = min(MAX_TASK_REQUESTS, -(-len(rows) // (MIN_TASKS_PER_WORKER * self.n_workers)))
        tasks = ray.data.from_items(rows, override_num_blocks=-(-len(rows) // n_per_task))
        results: Iterable[Row] = tasks.map_batches(
            Worker, fn_constructor_args=self._worker_arguments, batch_size=None, batch_format="numpy",
            compute=ray.data.ActorPoolStrategy(size=self.n_workers), num_cpus=1,
        ).iter_rows()  # fmt: skip
        return results

    def close(self) -> None:
        import ray

        ray.shutdown()
        self._redirection.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def require_listening(address: str) -> None:
    """Raise OSError if no process listens at HOST:PORT. Ray itself would retry for minutes and then end the process."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()


class Worker:
    """A Ray actor: a model that runs the requests of one task after another."""

    def __init__(self, name: str, options: Mapping[str, Any], digest: str) -> None:
        from localinfer.batch.runner import Runner

        def load(source: str) -> "Model":
            import localinfer
            from localinfer.hub import resolve
            from localinfer.hub.pull import pull

            try:
                resolve.find(source)
            except resolve.NotDownloadedError:
                pull(source)
            model = localinfer.load(source, **options)
            if job_digest(model.file, model.options) != digest:
                raise LocalInferError(f"{source}: differs between a worker and this machine")
            return model

        self._runner = Runner(load, name)

    def __call__(self, rows: Mapping[str, Any]) -> Row:
        names = ("number", "custom_id", "url", "body")
        requests = [
            Request(int(number), str(custom_id), str(url), json.loads(body))
            for number, custom_id, url, body in zip(*(rows[name] for name in names), strict=True)
        ]
        responses = list(self._runner.responses(requests))
        return {
            "number": [response.request.number for response in responses],
            "status": [response.status for response in responses],
            "body": [json.dumps(response.body) for response in responses],
        }


def to_row(request: Request) -> Row:
    body = json.dumps(request.body)
    return {"number": request.number, "custom_id": request.custom_id, "url": request.url, "body": body}


@contextmanager
def convert_ray_errors(prefix: str) -> Iterator[None]:
    """Convert Ray's errors to a LocalInferError of one line that starts with `prefix`."""
    import ray.exceptions

    try:
        yield
    except LocalInferError:
        raise
    except (ray.exceptions.RayError, OSError, RuntimeError, ValueError) as error:
        *_, last = str(error).strip().splitlines() or [type(error).__name__]  # the line after the actor's traceback
        raise LocalInferError(f"{prefix}: {printable(last, MAX_ERROR_CHARS)}") from None

"""Models of the MCP server. Each is loaded when it is first used."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from localinfer.mcp.server.jobs import Job, JobQueue

if TYPE_CHECKING:
    from localinfer import Model

Progress = Callable[[str, int, int], None]
Load = Callable[[str, Progress], "Model"]


class ServedModel:
    """A model that jobs of `queue` use, one at a time. `load` loads it."""

    def __init__(self, name: str, load: Load) -> None:
        self.name = name
        self.queue = JobQueue()
        self._load = load
        self._model: Model | None = None
        self._job: Job | None = None

    @property
    def n_ctx(self) -> int | None:
        """The context length, once the model is loaded."""
        return self._model.n_ctx if self._model else None

    def open(self, job: Job) -> "Model":
        """Return the model for a job, whose progress it reports. Raises what loading it raises."""
        self._job = job
        if self._model is None:
            job.report(0, None, f"loading {self.name}")
            self._model = self._load(self.name, self._progress)
        return self._model

    def close(self) -> None:
        if self._model:
            self._model.close()

    def _progress(self, stage: str, done: int, total: int) -> None:
        """Pass the progress of prefill on to the client. A cancelled job ends here; loading is not interrupted."""
        if self._job and self._model:
            if stage == "prefill" and total:
                self._job.report(min(done / total, 0.99), None, f"processing the prompt: {done} of {total} tokens")
            self._job.check()

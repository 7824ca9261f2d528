"""An evaluation with an output file, which makes it resumable: one JSON line for each item that has a result.

The `id` of a line consists of two digests: of the model, the task and the options, and of the item. A later run takes
over the results of its items, and evaluates the others. It may have more items, or fewer.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

from localinfer.batch.job import DIGEST_BYTES, RESTART_HINT, job_digest
from localinfer.batch.output_file import OutputFile
from localinfer.errors import UsageError
from localinfer.evaluation.tasks.results import ItemResult
from localinfer.evaluation.tasks.task import Item
from localinfer.gguf.reader import GGUF
from localinfer.options import Options

PREFIX = "eval-"
LINE_START = f'{{"id": "{PREFIX}'  # of each result: see `EvaluationJob.line`


def run_digest(f: GGUF, options: Options, task: str) -> str:
    """Return a digest of the model, the task, and the options that change results."""
    content = job_digest(f, replace(options, ctx_size=0)) + task  # what fits has the same results in any context
    return blake2b(content.encode(), digest_size=DIGEST_BYTES).hexdigest()


class EvaluationJob:
    """The items of an evaluation, and the results so far, by the number of the item.

    `digest` is that of the run, and `metrics` are those of each result.
    """

    def __init__(self, items: Sequence[Item], digest: str, metrics: Sequence[str]) -> None:
        self.items, self.results = items, dict[int, ItemResult]()
        self._metrics = set(metrics)
        self._start = f"{PREFIX}{digest}-"
        self._ids = [self._start + item.digest for item in items]
        self._numbers: dict[str, list[int]] = {}  # items with equal texts have the same results
        for number, id in enumerate(self._ids):
            self._numbers.setdefault(id, []).append(number)

    def resume(self, output: OutputFile) -> None:
        """Take over the results of earlier runs, and truncate what an interrupted run left incomplete.

        Raises UsageError, and leaves the file unchanged, if it is not the output of the same evaluation.
        """
        for _, line in output.lines():
            id, result = self._parse(line, output.path)
            for number in self._numbers.get(id, ()):
                self.results[number] = result
        start = (LINE_START + self._start.removeprefix(PREFIX)).encode()
        if not start.startswith(output.incomplete_line(len(start))):
            raise UsageError(f"{output.path}: exists and does not end with a result of an evaluation; {RESTART_HINT}")
        output.truncate()

    def pending(self) -> list[int]:
        """Return the numbers of the items without a result."""
        return [number for number in range(len(self.items)) if number not in self.results]

    def add(self, number: int, result: ItemResult, output: OutputFile | None) -> None:
        """Record the result of an item, and append it to the output."""
        self.results[number] = result
        if output:
            fields = {"id": self._ids[number], "group": result.group, "correct": result.correct, **result.details}
            output.append(json.dumps(fields).encode() + b"\n")

    def _parse(self, line: bytes, path: Path) -> tuple[str, ItemResult]:
        """Return the id and the result of a line of the output. Raises UsageError if it is not one of this run."""
        try:
            fields = json.loads(line)
            id, group, correct = str(fields["id"]), str(fields["group"]), dict(fields["correct"])
        except (ValueError, KeyError, TypeError, RecursionError):
            id = ""
        if not id.startswith(PREFIX):
            raise UsageError(f"{path}: exists and has lines that are not results of an evaluation; {RESTART_HINT}")
        if not id.startswith(self._start):
            raise UsageError(f"{path}: was made with another model, task or other options; {RESTART_HINT}")
        if correct.keys() != self._metrics:
            raise UsageError(f"{path}: has lines that were changed; {RESTART_HINT}")
        return id, ItemResult(group, correct, {})

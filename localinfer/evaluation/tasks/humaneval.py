"""HumanEval: Python functions that a model completes from their docstrings, and tests that decide (pass@1,
https://arxiv.org/abs/2107.03374).

Files are the dataset's JSON Lines (HumanEval.jsonl.gz). Scoring executes what the model wrote: see `sandbox`.
"""

from pathlib import Path

from localinfer.evaluation.tasks import sandbox
from localinfer.evaluation.tasks.reading import Record, json_lines
from localinfer.evaluation.tasks.task import GenerationItem, GenerationTask


def read(path: Path) -> list[GenerationItem]:
    """Return the items of a file. Raises LocalInferError."""
    return list(map(item_of_record, json_lines(path)))


def item_of_record(record: Record) -> GenerationItem:
    reference = {"test": record.text("test"), "entry_point": record.text("entry_point")}
    return GenerationItem(record.text("prompt"), reference)


def score(item: GenerationItem, output: str) -> dict[str, bool]:
    """Run the tests of an item on an output."""
    test, name = item.reference["test"], item.reference["entry_point"]
    return {"pass@1": sandbox.passes(f"{item.prompt}{output}\n{test}\ncheck({name})\n")}


TASK = GenerationTask(
    title="HumanEval",
    read=read,
    metrics=("pass@1",),
    score=score,
    until=("\nclass", "\ndef", "\n#", "\nif", "\nprint"),
    max_tokens=1024,
    runs_code=True,
)

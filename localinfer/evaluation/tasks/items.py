"""The items that are evaluated: read from files, selected, with examples before the question."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from localinfer.errors import LocalInferError, UsageError
from localinfer.evaluation.tasks.reading import shown
from localinfer.evaluation.tasks.selection import SEED
from localinfer.evaluation.tasks.task import Item, Task, with_examples


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which items are evaluated, and which examples come before each question.

    `limit` 0 means all. The items are shuffled with the `seed`, unless `shuffle` is False. The `num_fewshot` examples
    are the first items of the same group in the `fewshot_files`; None means the number that the task has by default.
    """

    limit: int = 0
    shuffle: bool = True
    seed: int = SEED
    num_fewshot: int | None = None
    fewshot_files: Sequence[Path] = ()


def read_items(task: Task, files: Sequence[Path], selection: Selection) -> list[Item]:
    """Return the selected items of the files.

    Raises LocalInferError for a file that is not one of the task, and UsageError if there are too few examples.
    """
    items = [item for path in files for item in read_file(task, path)]
    items = task.shuffle(items, selection.seed) if selection.shuffle else items
    items = items[: selection.limit or None]
    count = task.num_fewshot if selection.num_fewshot is None else selection.num_fewshot
    if not count:
        return items
    examples = [item for path in selection.fewshot_files for item in read_file(task, path)]
    counts = Counter(each.group for each in examples)
    if lacking := next((item for item in items if counts[item.group] < count), None):
        of_group = f" of {lacking.group}" if lacking.group else ""
        found = f"the few-shot files have {counts[lacking.group]} examples{of_group}, not {count}"
        raise UsageError(f"{found}; name more with --fewshot-file, or give --num-fewshot 0")
    return with_examples(items, examples, count)


def read_file(task: Task, path: Path) -> Sequence[Item]:
    """Return the items of a file, at least one. Raises LocalInferError."""
    items = task.read(path)
    if not items:
        raise LocalInferError(f"{shown(path)}: has no items")
    return items

"""`localinfer.evaluate`: the score of a model on a task, from Python."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from localinfer.errors import UsageError
from localinfer.evaluation.tasks import TASKS
from localinfer.evaluation.tasks.items import Selection, read_items
from localinfer.evaluation.tasks.results import Accuracy, ItemResult, accuracies
from localinfer.evaluation.tasks.task import AnyTask, GenerationTask
from localinfer.gguf.reader import GGUF, open_gguf
from localinfer.harness.prepared import default_options, prepare
from localinfer.hub import resolve
from localinfer.model.loaded_model import LoadedModel
from localinfer.options import Layer, Options, from_environment, from_keywords, from_metadata, merge
from localinfer.options.keywords import LoadKeywords
from localinfer.tokenizer import from_gguf

CODE_IS_RUN = "executes Python programs that the model writes"

EvaluationProgress = Callable[[int, int, Mapping[str, Accuracy]], None]  # items done, items, the scores so far


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The scores of a task by the name of the metric, and the result of each item."""

    scores: Mapping[str, Accuracy]
    items: Sequence[ItemResult]


def evaluate(
    model: str | Path,
    task: str,
    files: Sequence[str | Path],
    *,
    limit: int = 0,
    shuffle: bool = True,
    num_fewshot: int | None = None,
    fewshot_files: Sequence[str | Path] = (),
    run_code: bool = False,
    progress: EvaluationProgress | None = None,
    **options: Unpack[LoadKeywords],
) -> Evaluation:
    """Return the score of a model on a task: "hellaswag", "winogrande", "arc", "mmlu", "multiple-choice", "gsm8k" or
    "humaneval".

    `files` have the items of the task, of which at most `limit` are evaluated (0: all), in a random order which is
    always the same, unless `shuffle` is False. The first `num_fewshot` items of the `fewshot_files` are examples before
    each question. `run_code` allows to execute Python programs that the model writes, which "humaneval" requires: see
    `localinfer.evaluation.tasks.sandbox`.

    Raises UsageError, LocalInferError for a file that is not one of the task, ContextOverflowError, and what
    `localinfer.load` raises.
    """
    found = find_task(task, run_code=run_code)
    selection = Selection(
        limit=limit, shuffle=shuffle, num_fewshot=num_fewshot, fewshot_files=list(map(Path, fewshot_files))
    )
    items = read_items(found, list(map(Path, files)), selection)
    f = open_gguf(resolve.find(model))
    prepared = prepare(found, items, from_gguf(f))
    results = dict[int, ItemResult]()
    merged = prepared.options(load_options(found, model, f, from_keywords(options)))
    with closing(LoadedModel(f, merged, name=model)) as loaded, closing(prepared.run(loaded)) as finished:
        for number, result in finished:
            results[number] = result
            if progress:
                progress(len(results), len(items), accuracies(found.metric_names, list(results.values())))
    ordered = [results[number] for number in range(len(items))]
    return Evaluation(accuracies(found.metric_names, ordered), ordered)


def find_task(name: str, *, run_code: bool) -> AnyTask:
    """Return a task by its name. Raises UsageError if there is none, or if it executes code and that is not allowed."""
    task = TASKS.get(name.replace("_", "-"))
    if task is None:
        raise UsageError(f"task: {name}: must be one of {', '.join(TASKS)}")
    if isinstance(task, GenerationTask) and task.runs_code and not run_code:
        raise UsageError(f"{name}: {CODE_IS_RUN}; --run-code allows it: read docs/evaluation.md first")
    return task


def load_options(task: AnyTask, name: str | Path, f: GGUF, given: Layer) -> Options:
    """Return the options with which a model is loaded for a task, but for the size of the context."""
    named = resolve.default_options(name)
    named.pop("ctx_size", None)  # the longest item defines it, unless the user does
    return merge(given, from_environment(os.environ), named, from_metadata(f.metadata, f.path), default_options(task))

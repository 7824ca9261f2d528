"""The command `localinfer eval`: the score of a model on a task such as HellaSwag, MMLU or GSM8K."""

import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.arguments.flags import JsonOption, ModelArgument, QuietOption, with_options
from cli.files.output_files import writable_path
from cli.models.loading import find_or_fetch, open_model
from cli.terminal import screen
from cli.terminal.tables import table
from localinfer.errors import LocalInferError, UsageError
from localinfer.options import Layer

if TYPE_CHECKING:
    from localinfer.batch.evaluation_job import EvaluationJob
    from localinfer.batch.output_file import OutputFile
    from localinfer.evaluation.tasks.items import Selection
    from localinfer.evaluation.tasks.results import Accuracy, ItemResult
    from localinfer.evaluation.tasks.task import AnyTask, Item

FIRST_REPORT_SECONDS = 5.0
TASK_NAMES = ("hellaswag", "winogrande", "arc", "mmlu", "multiple-choice", "gsm8k", "humaneval")
UNUSED_OPTIONS = ("ctx_policy", "keep", "prefix_store", "prefix_store_size")  # no item exceeds the context


@dataclass(frozen=True, kw_only=True)
class SelectionOptions:
    """Which items are evaluated, and the examples before each question."""

    limit: Annotated[int, typer.Option("--limit", metavar="N", min=0, help="Evaluate at most N items (0: all).")] = 0
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", min=0, max=2**32 - 1, help="Seed of the random order of the items.")
    ] = 1
    shuffle: Annotated[
        bool, typer.Option("--shuffle/--no-shuffle", help="Take items in a random order, or in the order of the files.")
    ] = True
    num_fewshot: Annotated[
        int | None,
        typer.Option(
            "--num-fewshot", metavar="N", min=0,
            help="Number of examples before each question. [default: 5 for gsm8k, otherwise 0]",
        ),
    ] = None  # fmt: skip
    fewshot_files: Annotated[
        list[Path] | None,
        typer.Option("--fewshot-file", metavar="FILE", help="A file with examples; may be repeated."),
    ] = None

    def selection(self) -> "Selection":
        from localinfer.evaluation.tasks.items import Selection

        return Selection(
            limit=self.limit, shuffle=self.shuffle, seed=self.seed, num_fewshot=self.num_fewshot,
            fewshot_files=self.fewshot_files or (),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Where the results go."""

    out: Annotated[
        str | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Write each result to FILE. If FILE is unfinished, resume."
        ),
    ] = None
    restart: Annotated[bool, typer.Option("--restart", help="Discard the existing output and start over.")] = False
    as_json: JsonOption = False
    quiet: QuietOption = False


@with_options("model", "adapters", without=UNUSED_OPTIONS)
def eval_command(
    model: ModelArgument,
    task: Annotated[str, typer.Argument(metavar="TASK", help=f"One of {', '.join(TASK_NAMES)}.")],
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files with the items of the task.")],
    given: Layer,
    selected: SelectionOptions,
    output: OutputOptions,
    run_code: Annotated[
        bool, typer.Option("--run-code", help="Allow humaneval to execute the programs that the model writes.")
    ] = False,
) -> None:
    """Evaluate a model on a task: HellaSwag, MMLU, GSM8K and others.

    FILE is a file of the dataset (JSON Lines or CSV), or one of llama-perplexity --hellaswag, --winogrande or
    --multiple-choice. Prompts and scores are those of lm-evaluation-harness and of llama.cpp. Each score has its
    standard error and the 95 % confidence interval.

    With -o, each result is written as soon as it is known, and the same command resumes an interrupted evaluation.
    --limit takes the items that llama-perplexity takes from the same file, or with --no-shuffle the first ones. Given
    answers are scored with --precision high, unless --precision says otherwise.

    humaneval executes Python programs that the model writes, if --run-code is given, in a child process with limits and
    without network where the system allows it. They run as your user, who may read and change files: use a container.

    \b
    Examples:
      localinfer eval smollm2 hellaswag hellaswag_val.jsonl --limit 400
      localinfer eval model.gguf mmlu anatomy_test.csv --num-fewshot 5 --fewshot-file anatomy_dev.csv
      localinfer eval model.gguf gsm8k test.jsonl --fewshot-file train.jsonl -o results.jsonl
    """
    from localinfer.evaluation.tasks.items import read_items
    from localinfer.harness.run import find_task

    inputs = [str(file) for file in (*files, *(selected.fewshot_files or ()))]
    found, path = find_task(task, run_code=run_code), output_path(output, inputs)
    items = read_items(found, files, selected.selection())
    opened_model = OpenedModel(model, found, given)
    work = opened_model.job(items)
    with open_output(path, restart=output.restart) as opened:
        if opened:
            work.resume(opened)
        progress = Progress(found, work, quiet=output.quiet)
        if work.pending():
            with report_interruption(work, opened):
                opened_model.run(work, opened, progress)
    results = [work.results[number] for number in range(len(items))]
    if output.as_json:
        screen.write(json.dumps({"model": model, "task": task, **as_object(found, results)}) + "\n")
    else:
        screen.write("\n".join(as_text(found, results)).lstrip("\n") + "\n")


def output_path(output: OutputOptions, inputs: Sequence[str]) -> Path | None:
    """Return the path of the output file, if there is one. Raises UsageError if it cannot be written, or is an input
    file."""
    if output.out is None and output.restart:
        raise UsageError("--restart: requires -o FILE")
    return None if output.out is None else writable_path("--output", output.out, inputs=inputs)


def open_output(path: Path | None, *, restart: bool) -> "AbstractContextManager[OutputFile | None]":
    """Open the output file, if there is one."""
    if path is None:
        return nullcontext()
    from localinfer.batch import output_file

    return output_file.open_output(path, restart=restart)


class OpenedModel:
    """The file of a model and the options for loading it. The model itself is loaded when the items are known."""

    def __init__(self, name: str, task: "AnyTask", given: Layer) -> None:
        from localinfer.gguf.reader import open_gguf
        from localinfer.harness.run import load_options

        self.name, self.task = name, task
        self.file = open_gguf(find_or_fetch(name, screen.Status()))
        self.options = load_options(task, name, self.file, given)

    def job(self, items: "Sequence[Item]") -> "EvaluationJob":
        """Return the evaluation of items, without results."""
        from localinfer.batch.evaluation_job import EvaluationJob, run_digest

        digest = run_digest(self.file, self.options, self.task.title)
        return EvaluationJob(items, digest, self.task.metric_names)

    def run(self, work: "EvaluationJob", output: "OutputFile | None", progress: "Progress") -> None:
        """Evaluate the pending items, and record their results."""
        from localinfer.harness.prepared import prepare
        from localinfer.tokenizer import from_gguf

        pending = work.pending()
        with progress.status.busy(f"tokenizing {len(pending):,} items"):
            prepared = prepare(self.task, [work.items[number] for number in pending], from_gguf(self.file))
        model = open_model(self.name, asdict(prepared.options(self.options)), progress.status)
        with closing(model), closing(prepared.run(model)) as results:
            progress.start()
            for number, result in results:
                work.add(pending[number], result, output)
                progress.report()
        progress.status.erase()


@contextmanager
def report_interruption(work: "EvaluationJob", output: "OutputFile | None") -> Iterator[None]:
    """Report the finished items, and how to resume, when the evaluation is interrupted or fails."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, LocalInferError):
        screen.erase_progress()
        if output and work.results:
            done = f"{len(work.results):,} of {len(work.items):,} items are done"
            screen.note(f"{screen.one_line(str(output.path))}: {done}; run the same command to resume")
        raise


class Progress:
    """Progress of an evaluation: the score so far and the remaining time.

    A terminal gets a status line that is redrawn; other streams get a few plain lines at growing intervals.
    """

    def __init__(self, task: "AnyTask", work: "EvaluationJob", *, quiet: bool) -> None:
        self.metric, self.work, self.quiet = task.metric_names[0], work, quiet
        self.earlier, self.status = len(work.results), screen.Status()
        self.next_report = FIRST_REPORT_SECONDS
        if self.earlier and not quiet:
            screen.note(f"{self.earlier:,} of {len(work.items):,} items are done")

    def start(self) -> None:
        """Start the clock."""
        self.start_time = time.monotonic()
        self.status.show(f"{len(self.work.pending()):,} items ...")

    def report(self) -> None:
        """Show the score of all results so far."""
        from localinfer.evaluation.tasks.results import accuracies

        seconds, done, total = time.monotonic() - self.start_time, len(self.work.results), len(self.work.items)
        is_due = not self.status.is_redrawable and not self.quiet and seconds >= self.next_report
        if not self.status.is_redrawable and not is_due:
            return
        score = accuracies([self.metric], list(self.work.results.values()))[self.metric]
        left = screen.time_left(done - self.earlier, total - self.earlier, seconds)
        line = f"{done:,} of {total:,}, {self.metric} {percent(score)}, {left}"
        self.status.show(f"{screen.progress_bar(done, total)}  {line}")
        if is_due:
            self.next_report = 2 * seconds
            screen.note_dim(line)


# ---- results -----------------------------------------------------------------------------------------------


def as_text(task: "AnyTask", results: "Sequence[ItemResult]") -> Iterator[str]:
    """Yield the lines that show the scores."""
    from localinfer.evaluation.tasks.results import accuracies, by_group

    groups = by_group(results)
    for metric in task.metric_names if len(groups) > 1 else ():
        rows = [(name, *cells(accuracies([metric], own)[metric])) for name, own in groups.items()]
        yield from table(f"{metric} by subject", "<>><", rows)
    rows = [(name, *cells(score)) for name, score in accuracies(task.metric_names, results).items()]
    yield from table(f"{task.title}, {len(results):,} items", "<>><", rows)


def cells(score: "Accuracy") -> tuple[str, str, str]:
    """Return the cells of a table: the score, the number of correct items, and the confidence interval."""
    low, high = score.interval
    return percent(score), f"{score.n_correct:,} of {score.n_items:,}", f"95 %: {100 * low:.2f} to {100 * high:.2f}"


def percent(score: "Accuracy") -> str:
    """Return a score with its standard error, which one item has not."""
    error = "" if math.isnan(score.error) else f" +/- {100 * score.error:.2f}"
    return f"{100 * score.value:.2f} %{error}"


def as_object(task: "AnyTask", results: "Sequence[ItemResult]") -> dict[str, Any]:
    """Return the scores as a JSON object."""
    from localinfer.evaluation.tasks.results import accuracies, by_group

    def metrics(own: "Sequence[ItemResult]") -> dict[str, Any]:
        return {name: fields(score) for name, score in accuracies(task.metric_names, own).items()}

    groups = {name: {"items": len(own), "metrics": metrics(own)} for name, own in by_group(results).items() if name}
    return {"items": len(results), "metrics": metrics(results), **({"groups": groups} if groups else {})}


def fields(score: "Accuracy") -> dict[str, Any]:
    error = None if math.isnan(score.error) else score.error
    return {"value": score.value, "stderr": error, "interval": score.interval}

"""`localinfer batch`: the requests of a file, answered into another one that outlives whatever ends the job."""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cli import screen
from cli.files import promised
from cli.flags import ModelArgument, QuietOption, with_options
from cli.generate import rate
from cli.loading import fetched, loading
from cli.stdin import is_piped
from cli.texts import STDIN
from localinfer.errors import LocalInferError, UsageError
from localinfer.options import Layer

if TYPE_CHECKING:
    from localinfer.batch.answering import Answering
    from localinfer.batch.cluster import Cluster
    from localinfer.batch.job import Answer, Job
    from localinfer.batch.output import Output
    from localinfer.files.gguf import GGUF
    from localinfer.options import Options

FIRST_WORD = 10.0  # seconds until a plain line tells of the time left; each further one comes after twice that time
USUAL: Layer = {"parallel": 8}
Format = Literal["jsonl", "text"]


InputArgument = Annotated[
    str | None, typer.Argument(metavar="[INPUT]", help="The requests, a line each; stdin if it is left out or -.")
]
OutputOption = Annotated[
    str | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help="Where answers go, a line each; an unfinished job goes on with what is left. [default: stdout]",
    ),
]
RestartOption = Annotated[bool, typer.Option("--restart", help="Drop what is in the output, and begin anew.")]
RetryFailedOption = Annotated[
    bool, typer.Option("--retry-failed", help="Ask once more what has failed in an earlier go.")
]
FormatOption = Annotated[
    Format | None,
    typer.Option(
        "--format",
        metavar="jsonl|text",
        help="JSON lines, or text whose lines are prompts. [default: by the input's name or first line]",
    ),
]
RawOption = Annotated[bool, typer.Option("--raw", help="Continue prompts as they are, without a chat template.")]
AnyModelOption = Annotated[bool, typer.Option("--any-model", help="Answer requests for other models, too.")]
RayOption = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Have a Ray cluster answer: HOST:PORT, auto, or local for one of its own. "
        "Needs the extra localinfer[ray].",
    ),
]
RayWorkersOption = Annotated[
    int, typer.Option("--ray-workers", metavar="N", min=0, help="Models on the cluster (0: one for each machine).")
]


@with_options("model", "sampling", "generation", "form", "speculation", "draft", "chat", defaults=USUAL)
def batch_command(
    model: ModelArgument,
    given: Layer,
    file: InputArgument = None,
    out: OutputOption = None,
    restart: RestartOption = False,
    retry_failed: RetryFailedOption = False,
    format: FormatOption = None,
    raw: RawOption = False,
    any_model: AnyModelOption = False,
    ray: RayOption = None,
    ray_workers: RayWorkersOption = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Write a summary to stdout as a JSON object.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Answer the requests of a file, a line each, into another one.

    A line is a request in OpenAI's batch format; an object with messages, or with a prompt, beside which system,
    schema, temperature and so on may stand; or a prompt alone, as a JSON string or plain text. Options hold where a
    line says nothing else. Answers are lines in OpenAI's format, written as they come and put in the order of the input
    at the end. A request that fails is a line with an error, and ends nothing; the exit code is then 1.

    A job that was interrupted, or killed, goes on where it was when it is started again.

    \b
      localinfer batch prompts.jsonl -m smollm2 -o answers.jsonl
      localinfer batch smollm2 questions.txt -o answers.jsonl -sys "Answer in one word." --temp 0
      cat prompts.jsonl | localinfer batch smollm2 -n 100 > answers.jsonl
      localinfer batch smollm2 prompts.jsonl -o answers.jsonl --json-schema-file book.json
    """
    if ray is not None:
        from localinfer.batch.cluster import require_extra

        require_extra()
    path = output_path(out, file, needed=restart or retry_failed or as_json or ray is not None)
    where, content = input_of(file)
    from localinfer.batch import job, output, reading

    chosen = format or reading.format_of(content, where)
    requests = reading.requests_of(content, where, chosen, raw=raw)
    if not any_model:
        job.require_model(requests, names_of(model), where)
    f, options = opened_file(model, given)
    work = job.Job(requests, job.job_digest(f, options))
    with output.opened(path, restart=restart) if path else nullcontext() as opened:
        if opened:
            begin(work, opened, retry_failed=retry_failed)
        left = work.left()
        progress = Progress(len(requests), len(left), "lines of text" if chosen == "text" else "requests", quiet)
        if left:
            with (
                interrupted(work, opened),
                answering(model, options, ray, ray_workers, work.digest) as source,
                closing(source.each(left)) as answers,
            ):
                for answer in progress.watched(answers):
                    take(work, answer, opened)
        if opened:
            finish(work, opened)
    if as_json:
        screen.write(json.dumps({"output": out, "failed": len(work.failed)} | progress.summary) + "\n")
    elif not quiet:
        screen.aside(progress.told(len(work.failed)))
    if work.failed:
        raise LocalInferError(failure(work, where, resumable=path is not None))


# --- what is asked, and where to ---


def output_path(name: str | None, file: str | None, *, needed: bool) -> Path | None:
    """None for stdout."""
    if name is None or name == STDIN:
        if needed:
            raise UsageError("--restart, --retry-failed, --json and --ray: need -o FILE")
        return None
    path = promised("--output", name)
    if file and file != STDIN and path.exists() and Path(file).exists() and path.samefile(file):
        raise UsageError(f"--output: {name}: is the input")
    return path


def input_of(file: str | None) -> tuple[str, bytes]:
    """What the input is called, and all of it."""
    if file is None or file == STDIN:
        if not is_piped():
            raise UsageError("no requests: give the name of a file behind the model, or pipe them into stdin")
        return "stdin", sys.stdin.buffer.read()
    try:
        return file, Path(file).expanduser().read_bytes()
    except OSError as error:
        raise LocalInferError(f"{file}: {error.strerror}") from None
    except (ValueError, RuntimeError) as error:  # a NUL inside; a home that is not known
        raise LocalInferError(f"{file!r}: {error}") from None


def names_of(model: str) -> list[str]:
    """By which requests may call it."""
    from localinfer.server.shelf import name_of

    return [model, name_of(model)]


def opened_file(model: str, given: Layer) -> "tuple[GGUF, Options]":
    """The model's file, and the options that hold for it."""
    from localinfer.files.gguf import open_gguf
    from localinfer.models import registry
    from localinfer.options import from_environment, from_metadata, merge

    f = open_gguf(fetched(model, screen.Status()))
    named, proposed = registry.default_options(model), from_metadata(f.metadata, f.path)
    options = merge(given, from_environment(os.environ), named, proposed, USUAL)
    if options.spec_draft_model:
        fetched(options.spec_draft_model, screen.Status())
    return f, options


# --- the job ---


def begin(work: "Job", output: "Output", *, retry_failed: bool) -> None:
    """See what earlier goes have left."""
    work.resume(output)
    if retry_failed:
        work.forget_failed(output)
    if work.places:
        screen.note(f"{screen.one_line(str(output.path))}: {len(work.places):,} of {len(work.requests):,} are done")


def answering(
    model: str, options: "Options", address: str | None, workers: int, digest: str
) -> "Answering | Cluster":
    """What answers: the model on this machine, or many on a cluster."""
    if address is not None:
        from localinfer.batch.cluster import Cluster

        return Cluster(address, model, options, digest, workers)
    from localinfer.batch.answering import Answering

    return Answering(loading(asdict(options)), model)


def take(work: "Job", answer: "Answer", output: "Output | None") -> None:
    if output:
        work.take(answer, output)
        return
    if answer.failed:
        work.failed.add(answer.request.number)
    screen.write(work.line_of(answer).decode())


@contextmanager
def interrupted(work: "Job", output: "Output | None") -> Iterator[None]:
    """Say what there is, and what can be done, when the job is told to end, or cannot go on."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, LocalInferError):
        screen.erase_progress()
        if output and (count := sum(1 for _ in output.lines())):  # one may have been written that is not noted yet
            done = f"{count:,} of {len(work.requests):,} are done"
            screen.note(f"{screen.one_line(str(output.path))}: {done}; the same command goes on from there")
        raise


def finish(work: "Job", output: "Output") -> None:
    try:
        work.put_in_order(output)
    except LocalInferError as error:
        screen.warn(f"answers are left in the order in which they came: {error}")


def failure(work: "Job", where: str, *, resumable: bool) -> str:
    again = "; --retry-failed asks once more" if resumable else ""
    count, first = len(work.failed), min(work.failed)
    return f"{where}: {count:,} of {len(work.requests):,} requests failed, the first is line {first}{again}"


class Progress:
    """Counts what comes, and tells how long the rest takes: in a line that is redrawn, or in few that are not."""

    def __init__(self, total: int, left: int, what: str, quiet: bool) -> None:
        self.total, self.left, self.what, self.quiet = total, left, what, quiet
        self.done = self.read = self.reused = self.written = self.failed = 0
        self.began = time.monotonic()
        self.next_word = FIRST_WORD
        self.status = screen.Status()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def watched(self, answers: "Iterator[Answer]") -> "Iterator[Answer]":
        self.began = time.monotonic()
        self.status.show(f"{self.left:,} {self.what} ...")
        for answer in answers:
            yield answer
            self.count(answer)
            if self.done < self.left:
                self.tell()
        self.status.erase()

    def count(self, answer: "Answer") -> None:
        usage: dict[str, Any] = answer.body.get("usage") or {}
        details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
        self.done += 1
        self.failed += answer.failed
        self.read += usage.get("prompt_tokens", usage.get("input_tokens", 0))
        self.written += usage.get("completion_tokens", usage.get("output_tokens", 0))
        self.reused += details.get("cached_tokens", 0)

    def tell(self) -> None:
        failed = f", {self.failed:,} failed" if self.failed else ""
        left = screen.time_left(self.done, self.left, self.seconds)
        line = f"{self.done:,} of {self.left:,}{failed}, {rate(self.written, self.seconds)}, {left}"
        self.status.show(f"{screen.bar(self.done, self.left)}  {line}")
        if not self.status.live and not self.quiet and self.seconds >= self.next_word:
            self.next_word = 2 * self.seconds
            screen.aside(line)

    @property
    def summary(self) -> dict[str, object]:
        return {
            "requests": self.total,
            "answered": self.done,
            "earlier": self.total - self.left,
            "prompt_tokens": self.read,
            "cached_tokens": self.reused,
            "completion_tokens": self.written,
            "seconds": round(self.seconds, 3),
        }

    def told(self, failed: int) -> str:
        """In one line; `failed`: of all requests."""
        reused = f" ({self.reused:,} reused)" if self.reused else ""
        return (
            f"[ {self.done:,} of {self.total:,} answered, {failed:,} failed | {self.written:,} tokens, "
            f"{rate(self.written, self.seconds)} | prompts {self.read:,} tokens{reused} | {self.seconds:.1f} s ]"
        )

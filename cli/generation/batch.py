"""The command `localinfer batch`: run the requests of an input file and write the responses to an output file.

A job that was interrupted resumes from the output file.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cli.arguments.flags import ModelArgument, QuietOption, with_options
from cli.files.output_files import writable_path
from cli.files.stdin import is_piped
from cli.files.text_input import STDIN
from cli.generation.generate import format_rate
from cli.models.loading import find_or_fetch, model_loader
from cli.terminal import screen
from localinfer.errors import LocalInferError, UsageError
from localinfer.options import Layer

if TYPE_CHECKING:
    from localinfer.batch.job import Job, Response
    from localinfer.batch.output_file import OutputFile
    from localinfer.batch.ray_cluster import RayCluster
    from localinfer.batch.runner import Runner
    from localinfer.gguf.reader import GGUF
    from localinfer.options import Options

FIRST_REPORT_SECONDS = 10.0  # time of the first progress line without a terminal; the interval doubles after each
DEFAULTS: Layer = {"parallel": 8}
Format = Literal["jsonl", "text"]


@dataclass(frozen=True, kw_only=True)
class InputOptions:
    """The requests."""

    file: Annotated[
        str | None, typer.Argument(metavar="[INPUT]", help="Requests, one per line. [default: stdin]")
    ] = None
    format: Annotated[
        Format | None,
        typer.Option(
            "--format",
            metavar="jsonl|text",
            help="Input format: JSON Lines, or plain text with one prompt per line. [default: from the input]",
        ),
    ] = None
    raw: Annotated[bool, typer.Option("--raw", help="Complete prompts without a chat template.")] = False
    any_model: Annotated[bool, typer.Option("--any-model", help="Accept requests that name another model.")] = False
    media_path: Annotated[
        Path | None,
        typer.Option(
            "--media-path", metavar="DIR", help="Folder of images and sounds that requests may name as file:// URLs, "
            "relative to it.",
        ),
    ] = None  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """The responses, and the summary."""

    out: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write responses to FILE, one per line. If FILE is unfinished, resume. [default: stdout]",
        ),
    ] = None
    restart: Annotated[bool, typer.Option("--restart", help="Discard the existing output and start over.")] = False
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Retry the requests that failed in an earlier run.")
    ] = False
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as a JSON object.")] = False
    quiet: QuietOption = False


@dataclass(frozen=True, kw_only=True)
class RayOptions:
    """The Ray cluster that runs the requests."""

    ray: Annotated[
        str | None,
        typer.Option(
            "--ray",
            metavar="ADDRESS",
            help="Run on a Ray cluster: HOST:PORT, auto, or local to start one. Requires localinfer[ray].",
        ),
    ] = None
    ray_workers: Annotated[
        int,
        typer.Option(
            "--ray-workers", metavar="N", min=0, help="Number of model replicas on the cluster (0: one per machine)."
        ),
    ] = 0


@with_options(
    "model", "sampling", "generation", "diffusion", "structured", "speculative", "draft", "media", "adapters", "chat",
    defaults=DEFAULTS,
)  # fmt: skip
def batch_command(
    model: ModelArgument, given: Layer, source: InputOptions, output: OutputOptions, cluster: RayOptions
) -> None:
    """Run a file of requests and write the responses to a file.

    Each line of the input is a request: an entry of OpenAI's batch format, a JSON object with `messages` or `prompt`
    and optional fields such as system, schema and temperature, a prompt as a JSON string, or a prompt as plain text.
    The options of the command line apply to all requests that do not set the same field.

    Responses are in OpenAI's batch format. They are written as they finish, and sorted in input order at the end. The
    response to a failed request is a line with an error. The job continues, and its exit code is 1. If the job is
    interrupted, the same command resumes it.

    \b
    Examples:
      localinfer batch prompts.jsonl -m smollm2 -o answers.jsonl
      localinfer batch smollm2 questions.txt -o answers.jsonl -sys "Answer in one word." --temp 0
      cat prompts.jsonl | localinfer batch smollm2 -n 100 > answers.jsonl
      localinfer batch smollm2 prompts.jsonl -o answers.jsonl --json-schema-file book.json
      localinfer batch vision.gguf photos.jsonl -o captions.jsonl --media-path photos/
    """
    if source.media_path is not None and not source.media_path.is_dir():
        raise UsageError(f"--media-path: {screen.one_line(str(source.media_path))}: is not a folder")
    if cluster.ray is not None:
        from localinfer.batch.ray_cluster import require_extra

        require_extra()
        if source.media_path is not None:
            raise UsageError("--media-path: cannot be combined with --ray; send images as data: URLs")
    path = output_path(output, source.file, requires_file=cluster.ray is not None)
    name, content = read_requests(source.file)
    from localinfer.batch import input_file, job, output_file

    format = source.format or input_file.detect_format(content, name)
    requests = input_file.parse_requests(content, name, format, raw=source.raw)
    if not source.any_model:
        job.require_model(requests, model_names(model), name)
    f, options = open_model_file(model, given)
    work = job.Job(requests, job.job_digest(f, options))
    with output_file.open_output(path, restart=output.restart) if path else nullcontext() as opened:
        if opened:
            resume_job(work, opened, retry_failed=output.retry_failed)
        pending = work.pending()
        unit = "lines of text" if format == "text" else "requests"
        progress = Progress(len(requests), len(pending), unit, output.quiet)
        if pending:
            with report_interruption(work, opened), create_backend(
                model, options, cluster, work.digest, str(source.media_path or "")
            ) as backend:
                run_job(work, backend, progress, opened)
        if opened:
            sort_output(work, opened)
    if output.as_json:
        screen.write(json.dumps({"output": output.out, "failed": len(work.failed)} | progress.summary) + "\n")
    elif not output.quiet:
        screen.note_dim(progress.summary_line(len(work.failed)))
    if work.failed:
        raise LocalInferError(failure_message(work, name, resumable=path is not None))


def run_job(work: "Job", backend: "Runner | RayCluster", progress: "Progress", output: "OutputFile | None") -> None:
    """Run the pending requests and record their responses."""
    with closing(backend.responses(work.pending())) as responses:
        for response in progress.track(responses):
            record_response(work, response, output)


# --- input and output ---


def output_path(output: OutputOptions, file: str | None, *, requires_file: bool) -> Path | None:
    """Return the path of the output file, or None for stdout. Raises UsageError if it cannot be written."""
    name = output.out
    if name is None or name == STDIN:
        if requires_file or output.restart or output.retry_failed or output.as_json:
            raise UsageError("--restart, --retry-failed, --json and --ray: require -o FILE")
        return None
    return writable_path("--output", name, inputs=[file])


def read_requests(file: str | None) -> tuple[str, bytes]:
    """Return the name of the input for messages, and its content."""
    if file is None or file == STDIN:
        if not is_piped():
            raise UsageError("no requests: give the name of a file after the model, or pipe requests into stdin")
        return "stdin", sys.stdin.buffer.read()
    try:
        return file, Path(file).expanduser().read_bytes()
    except OSError as error:
        raise LocalInferError(f"{file}: {error.strerror}") from None
    except (ValueError, RuntimeError) as error:  # a NUL in the name; unknown home directory
        raise LocalInferError(f"{file!r}: {error}") from None


def model_names(model: str) -> list[str]:
    """Return the names by which a request may refer to the model."""
    from localinfer.server.models.model_cache import default_name

    return [model, default_name(model)]


def open_model_file(model: str, given: Layer) -> "tuple[GGUF, Options]":
    """Open the model file and resolve its options."""
    from localinfer.gguf.overrides import open_overridden
    from localinfer.hub import resolve
    from localinfer.options import from_environment, from_metadata, merge

    path = find_or_fetch(model, screen.Status())
    layers = given, from_environment(os.environ), resolve.default_options(model)
    f = open_overridden(path, merge(*layers, DEFAULTS))
    options = merge(*layers, from_metadata(f.metadata, f.path), DEFAULTS)
    if options.spec_draft_model:
        find_or_fetch(options.spec_draft_model, screen.Status())
    return f, options


# --- the job ---


def resume_job(work: "Job", output: "OutputFile", *, retry_failed: bool) -> None:
    """Load the state that earlier runs left in the output."""
    work.resume(output)
    if retry_failed:
        work.remove_failed(output)
    if work.locations:
        screen.note(f"{screen.one_line(str(output.path))}: {len(work.locations):,} of {len(work.requests):,} are done")


def create_backend(
    model: str, options: "Options", cluster: RayOptions, digest: str, media_path: str
) -> "Runner | RayCluster":
    """Return the backend that runs requests: the model on this machine, or a Ray cluster."""
    if cluster.ray is not None:
        from localinfer.batch.ray_cluster import RayCluster

        return RayCluster(cluster.ray, model, options, digest, cluster.ray_workers)
    from localinfer.batch.runner import Runner

    return Runner(model_loader(asdict(options)), model, media_path)


def record_response(work: "Job", response: "Response", output: "OutputFile | None") -> None:
    if output:
        work.add(response, output)
        return
    if response.has_failed:
        work.failed.add(response.request.number)
    screen.write(work.format_line(response).decode())


@contextmanager
def report_interruption(work: "Job", output: "OutputFile | None") -> Iterator[None]:
    """Report the finished requests, and how to resume, when the job is interrupted or fails."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, LocalInferError):
        screen.erase_progress()
        if output and (count := sum(1 for _ in output.lines())):  # may include one not yet counted
            done = f"{count:,} of {len(work.requests):,} are done"
            screen.note(f"{screen.one_line(str(output.path))}: {done}; run the same command to resume")
        raise


def sort_output(work: "Job", output: "OutputFile") -> None:
    try:
        work.sort_output(output)
    except LocalInferError as error:
        screen.warn(f"responses are not sorted: {error}")


def failure_message(work: "Job", where: str, *, resumable: bool) -> str:
    hint = "; --retry-failed retries them" if resumable else ""
    count, first = len(work.failed), min(work.failed)
    return f"{where}: {count:,} of {len(work.requests):,} requests failed, the first is line {first}{hint}"


class Progress:
    """Progress of a job: counts responses and estimates the remaining time.

    A terminal gets a status line that is redrawn; other streams get a few plain lines at growing intervals.
    """

    def __init__(self, total: int, pending: int, unit: str, quiet: bool) -> None:
        self.total, self.pending, self.unit, self.quiet = total, pending, unit, quiet
        self.done = self.prompt_tokens = self.cached_tokens = self.completion_tokens = self.failed = 0
        self.start_time = time.monotonic()
        self.next_report = FIRST_REPORT_SECONDS
        self.status = screen.Status()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.start_time

    def track(self, responses: "Iterator[Response]") -> "Iterator[Response]":
        self.start_time = time.monotonic()
        self.status.show(f"{self.pending:,} {self.unit} ...")
        for response in responses:
            yield response
            self.count(response)
            if self.done < self.pending:
                self.report()
        self.status.erase()

    def count(self, response: "Response") -> None:
        usage: dict[str, Any] = response.body.get("usage") or {}
        details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
        self.done += 1
        self.failed += response.has_failed
        self.prompt_tokens += usage.get("prompt_tokens", usage.get("input_tokens", 0))
        self.completion_tokens += usage.get("completion_tokens", usage.get("output_tokens", 0))
        self.cached_tokens += details.get("cached_tokens", 0)

    def report(self) -> None:
        failed = f", {self.failed:,} failed" if self.failed else ""
        left = screen.time_left(self.done, self.pending, self.seconds)
        line = f"{self.done:,} of {self.pending:,}{failed}, {format_rate(self.completion_tokens, self.seconds)}, {left}"
        self.status.show(f"{screen.progress_bar(self.done, self.pending)}  {line}")
        if not self.status.is_redrawable and not self.quiet and self.seconds >= self.next_report:
            self.next_report = 2 * self.seconds
            screen.note_dim(line)

    @property
    def summary(self) -> dict[str, object]:
        return {
            "requests": self.total,
            "answered": self.done,
            "earlier": self.total - self.pending,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "completion_tokens": self.completion_tokens,
            "seconds": round(self.seconds, 3),
        }

    def summary_line(self, failed: int) -> str:
        """Return the statistics of the job as one line; `failed` counts all runs of the job."""
        reused = f" ({self.cached_tokens:,} reused)" if self.cached_tokens else ""
        return (
            f"[ {self.done:,} of {self.total:,} done, {failed:,} failed | {self.completion_tokens:,} tokens, "
            f"{format_rate(self.completion_tokens, self.seconds)} | prompts {self.prompt_tokens:,} tokens{reused} | "
            f"{self.seconds:.1f} s ]"
        )

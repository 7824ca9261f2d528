"""The command `localinfer fit`: make the model file for this machine and a text.

`localinfer.fit` measures and chooses; this module shows the progress, and `cli.quantize.fit_report` the results.
"""

import contextlib
import hashlib
import json
import math
import shutil
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.arguments.flags import JsonOption, with_options
from cli.files.output_files import writable_path
from cli.files.text_input import read_text_files
from cli.models.loading import find_or_fetch
from cli.quantize.arguments import parse_option
from cli.quantize.command import fetch_checkpoint
from cli.quantize.flags import SourceArgument
from cli.quantize.lab import LabProgress
from cli.terminal import screen
from localinfer.errors import LocalInferError, UsageError

if TYPE_CHECKING:
    from cli.quantize.fit_report import FitPlan, FitResult
    from localinfer.evaluation.perplexity import Mean
    from localinfer.fit.choice import FitPoint, SpeedCurve
    from localinfer.fit.decode_time import DecodeTime
    from localinfer.fit.measurements import Workspace
    from localinfer.fit.speculation import SpeculationSpeed
    from localinfer.gguf.source import Source

DEFAULT_LAYERS = 4
SHOWN_RECIPES = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "IQ4_XS", "Q3_K_M")
CORRECTIONS = 2  # of the choice for a number of tokens per second, each with a new file
DEFAULT_TEXT = "the documentation of Python"


@dataclass(frozen=True, kw_only=True)
class GoalOptions:
    """What the file must meet."""

    ram: Annotated[
        str | None,
        typer.Option(
            "--ram", metavar="SIZE",
            help="Memory for the model, the KV cache and scratch memory, such as 8G [default: what is available].",
        ),
    ] = None
    ctx_size: Annotated[
        int, typer.Option("-c", "--ctx-size", metavar="N", min=64, help="Tokens of context that must fit.")
    ] = 4096
    tokens_per_second: Annotated[
        float,
        typer.Option(
            "--tokens-per-second", metavar="X", min=0, show_default=False,
            help="Make the best file that decodes so fast [default: the fastest as good as Q4_K_M].",
        ),
    ] = 0.0  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class MeasurementOptions:
    """What is measured, and how."""

    task: Annotated[
        list[str] | None,
        typer.Option(
            "--task", "-f", "--file", metavar="FILE",
            help="Text like that of your task; may be repeated [default: the documentation of Python].",
        ),
    ] = None
    imatrix: Annotated[
        Path | None, typer.Option("--imatrix", metavar="FILE", help="Use this importance matrix.")
    ] = None
    lab: Annotated[
        Path | None, typer.Option("--lab", metavar="FILE", help="Use these sensitivities, of `localinfer lab`.")
    ] = None
    layers_at_once: Annotated[
        int,
        typer.Option(
            "--layers-at-once", metavar="N", min=1, help="Measure tensors of the same kind in N layers together."
        ),
    ] = DEFAULT_LAYERS
    draft_model: Annotated[
        str, typer.Option("-md", "--model-draft", metavar="MODEL", help="Also try this draft model.")
    ] = ""
    threads: Annotated[
        int, typer.Option("-t", "--threads", metavar="N", min=0, max=512, help="Threads (0: the physical cores).")
    ] = 0


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """What is written."""

    output: Annotated[
        str | None,
        typer.Option("-o", "--output", metavar="FILE", help="The new file [default: SOURCE-fit.gguf, in this folder]."),
    ] = None
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, and write nothing.")] = False


@with_options()
def fit_command(
    source: SourceArgument,
    *,
    goal: GoalOptions,
    measurement: MeasurementOptions,
    output: OutputOptions,
    remote: Annotated[
        bool, typer.Option("--remote", help="SOURCE is a checkpoint on the Hugging Face Hub: OWNER/REPO.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make the model file for this machine and your text.

    The command measures how fast this machine reads each tensor type, how sensitive the model is to the quantization of
    each tensor on the text, and which kind of speculative decoding is fastest. By default, it writes the fastest file
    whose predicted KL divergence is at most that of llama.cpp's recipe Q4_K_M. SOURCE is a GGUF file in F32, F16 or
    BF16, or a checkpoint. The same command resumes an interrupted run.

    \b
    Examples:
      localinfer fit model-bf16.gguf --task text.txt -o model.gguf
      localinfer fit checkpoint/ --task text.txt --ram 8G -c 8192
      localinfer fit model-bf16.gguf --task text.txt --tokens-per-second 20
      localinfer fit model-bf16.gguf --dry-run
    """
    limit = parse_memory(goal.ram)
    if not math.isfinite(goal.tokens_per_second):
        raise UsageError(f"--tokens-per-second: must be a finite number, not {goal.tokens_per_second:g}")
    text, dataset = read_task(measurement.task)
    status = screen.Status()
    path = resolve_source(source, remote, status)
    out = output_path(source, path, output)
    setting = {"source": str(path), "changed": path.stat().st_mtime_ns, "dataset": dataset,
               "text": hashlib.sha256(text.encode()).hexdigest(),
               "layers_at_once": measurement.layers_at_once}  # fmt: skip
    with work_folder(out.with_name(f".{out.name}.{'plan' if output.dry_run else 'fit'}"), setting) as folder:
        fitting = Fitting(path, out, folder, goal.ctx_size, measurement, dataset, status)
        fitting.open(text)
        plan = fitting.plan(limit)
        if not as_json:
            show(fitting.plan_lines(plan), to_stdout=output.dry_run)
        result = None if output.dry_run else fitting.run(plan, goal.tokens_per_second, replace_file=output.force)
    report(plan, result, as_json=as_json)


def report(plan: "FitPlan", result: "FitResult | None", *, as_json: bool) -> None:
    """Write the result to stdout."""
    from cli.quantize.fit_report import plan_object, result_lines, result_object

    if as_json:
        found: dict[str, Any] = {"plan": plan_object(plan)} | (result_object(result) if result else {})
        screen.write(json.dumps(found, indent=1) + "\n")
    elif result:
        screen.write("\n".join(result_lines(result)).lstrip("\n") + "\n")


def show(lines: Iterator[str], *, to_stdout: bool) -> None:
    if to_stdout:
        screen.write("\n".join(lines).lstrip("\n") + "\n")
    else:
        for line in lines:
            screen.note(line)


def parse_memory(text: str | None) -> int:
    """Return the bytes of --ram, by default the available memory."""
    from localinfer.machine.resources import available_memory
    from localinfer.quantization.budget import parse_size

    target = parse_option("--ram", parse_size, text)
    return target.size or 0 if target else available_memory()


def read_task(files: Sequence[str] | None) -> tuple[str, str]:
    """Return the text of the task, and its name."""
    from localinfer.fit.passages import default_text

    return (read_text_files(files), ", ".join(files)) if files else (default_text(), DEFAULT_TEXT)


def resolve_source(name: str, remote: bool, status: screen.Status) -> Path:
    """Return the path of a GGUF file or of a checkpoint directory."""
    if remote:
        return fetch_checkpoint(name, status)
    return Path(name) if Path(name).is_dir() else find_or_fetch(name, status)


def output_path(name: str, source: Path, options: OutputOptions) -> Path:
    """Return the path of the new file. Raises UsageError if it cannot be written."""
    stem = source.stem if source.is_file() else Path(name.rstrip("/")).name
    given = options.output or f"{stem}-fit.gguf"
    path = writable_path("--output", given, (".gguf",), inputs=[str(source)], is_model=True)
    if path.exists() and not options.force and not options.dry_run:
        raise UsageError(f"--output: {given}: exists already; --force replaces it")
    return path


@contextlib.contextmanager
def work_folder(folder: Path, setting: dict[str, Any]) -> Iterator[Path]:
    """Make the folder of what is measured, and yield it.

    It is removed at the end, unless the run fails after something was measured. That of a run with another setting is
    emptied.
    """
    file, content = folder / "setting.json", json.dumps(setting)
    measured = ("imatrix.gguf", "lab.json", ".lab.json.unfinished")
    try:
        if folder.exists() and (not file.exists() or file.read_text(encoding="utf-8") != content):
            shutil.rmtree(folder)
        folder.mkdir(exist_ok=True)
        file.write_text(content, encoding="utf-8")
    except OSError as error:
        raise LocalInferError(f"{folder}: {error.strerror}") from None
    try:
        yield folder
    finally:
        failed = sys.exc_info()[0] is not None
        if failed and any((folder / name).exists() for name in measured):
            screen.note("what was measured is kept; run the same command to resume")
        else:
            shutil.rmtree(folder, ignore_errors=True)


class Fitting:
    """The steps of a run, with their progress."""

    def __init__(
        self, path: Path, out: Path, folder: Path, ctx_size: int, options: MeasurementOptions, dataset: str,
        status: screen.Status,
    ) -> None:  # fmt: skip
        self._path, self._out, self._folder, self._ctx_size = path, out, folder, ctx_size
        self._options, self._dataset, self._status = options, dataset, status
        self._threads = resolve_threads(options.threads)
        self._source: Source
        self._workspace: Workspace
        self._time: DecodeTime

    def open(self, text: str) -> None:
        """Open the source, after converting a checkpoint, and divide the text."""
        from cli.models import sigbus_handler
        from localinfer import tokenizer
        from localinfer.fit.measurements import Workspace
        from localinfer.fit.passages import divide
        from localinfer.gguf.gguf_source import from_gguf
        from localinfer.gguf.reader import open_gguf

        path = self._converted() if self._path.is_dir() else self._path
        sigbus_handler.install(screen.one_line(str(path)))
        self._source = from_gguf(path)
        tensors = measurable_tensors(self._source)
        if self._options.lab:
            require_same_tensors(tensors, self._options.lab)
        with self._status.busy("tokenizing the text"):
            passages = divide(tokenizer.from_gguf(open_gguf(path)), text, "--task")
        self._workspace = Workspace(path, self._folder, passages, self._threads, self._options.layers_at_once)

    def _converted(self) -> Path:
        """Return the checkpoint as a GGUF file in BF16."""
        from cli.quantize.progress import QuantizationProgress
        from localinfer.file_operations import open_source
        from localinfer.quantization.pipeline import write_plan
        from localinfer.quantization.plan import Request, make_plan

        path = self._folder / "source.gguf"
        if not path.exists():
            plan = make_plan(open_source(self._path), Request("BF16"))
            progress = QuantizationProgress(plan, self._status, prints_tensors=False)
            write_plan(plan, path, threads=self._threads, progress=progress, compiling=self._status)
            self._status.erase()
        return path

    def plan(self, memory: int) -> "FitPlan":
        """Measure the machine, and return the plan."""
        from cli.quantize.fit_report import FitPlan
        from localinfer.evaluation.roofline import measure
        from localinfer.fit.decode_time import measure_decode_time
        from localinfer.fit.measurements import estimated_seconds, smallest_size
        from localinfer.gguf.reader import open_gguf
        from localinfer.options import Options
        from localinfer.quantization.budget import TYPES
        from localinfer.runtime.requirements import memory_requirements

        present = {tensor.type_name for tensor in self._source.tensors.values()}
        with self._status.busy("measuring this machine"):
            roofline = measure(self._threads)
            self._time = measure_decode_time(
                self._source, [*dict.fromkeys([*TYPES, *sorted(present)])], self._folder, threads=self._threads,
                progress=self._status,
            )  # fmt: skip
        needed = memory_requirements(
            open_gguf(self._workspace.path), replace(Options(), ctx_size=self._ctx_size, threads=self._threads)
        )
        return FitPlan(
            roofline, memory, needed["kv"] + needed["scratch"], self._ctx_size,
            {name: self._size_and_speed(name) for name in SHOWN_RECIPES}, smallest_size(self._source),
            estimated_seconds(self._source, self._workspace, roofline),
        )  # fmt: skip

    def _size_and_speed(self, recipe: str) -> tuple[int, float]:
        """Return the bytes and the predicted tokens per second of a recipe."""
        from localinfer.quantization.plan import Request, make_plan
        from localinfer.quantization.quantize import plan_outputs

        plan = make_plan(self._source, Request(recipe))
        [file] = plan_outputs(replace(self._source, fields=plan.fields), self._out, plan.types, keep_split=False)
        types = {name: choice.type for name, choice in plan.choices.items()}
        return file.layout.size, 1 / self._time.seconds(types)

    def plan_lines(self, plan: "FitPlan") -> Iterator[str]:
        from cli.quantize.fit_report import plan_lines

        return plan_lines(plan)

    def run(self, plan: "FitPlan", tokens_per_second: float, *, replace_file: bool) -> "FitResult":
        """Measure the model, write the file, and check it. Raises UsageError if the goal cannot be met."""
        from cli.quantize.fit_report import FitResult, command_for, output_type_of
        from localinfer.fit.choice import Goal
        from localinfer.fit.speculation import fastest
        from localinfer.gguf.reader import open_gguf

        if plan.memory < (needed := plan.context + plan.smallest):
            problem = f"the smallest file needs {needed:,} with {plan.ctx_size:,} tokens of KV cache and scratch memory"
            raise UsageError(f"--ram: {plan.memory:,} bytes are not enough: {problem}")
        curve, imatrix = self._curve()
        goal = Goal(plan.file_limit, tokens_per_second)
        point = curve.choose(goal)
        speed = self._write(point, imatrix, replace_file=replace_file)
        for _ in range(CORRECTIONS):
            if speed >= tokens_per_second:
                break
            screen.note(f"decodes at {speed:.1f} tokens/s, not {tokens_per_second:g}; choosing faster types")
            goal = replace(goal, tokens_per_second=goal.tokens_per_second * tokens_per_second / speed)
            try:
                point = curve.choose(goal)
            except UsageError as problem:
                screen.warn(str(problem))
                break
            speed = self._write(point, imatrix, replace_file=True)
        output_type = output_type_of(point)
        divergence, speculation = self._check()
        spec_type, f = fastest(speculation).spec_type, open_gguf(self._out)
        command = command_for(
            shown_path(self._out), self._ctx_size, spec_type, chats="tokenizer.chat_template" in f.metadata,
            draft_model=self._options.draft_model,
        )  # fmt: skip
        return FitResult(
            shown_path(self._out), f.size, plan.context, point, curve.reference, divergence, speed, output_type,
            speculation, command,
        )  # fmt: skip

    def _curve(self) -> "tuple[SpeedCurve, Path]":
        """Measure the importance matrix and the sensitivities; return the curve and the file of the former."""
        from localinfer.fit import measurements
        from localinfer.fit.choice import SpeedCurve
        from localinfer.lab.frontier import SizeCurve
        from localinfer.lab.lab_file import read_lab

        imatrix = self._options.imatrix or measurements.collect_imatrix(
            self._workspace, self._dataset, self._status.percentage("importance matrix:"), self._status
        )
        self._status.erase()
        plan = measurements.make_base_plan(self._source, imatrix)
        if self._options.lab:
            lab = read_lab(self._options.lab)
        else:
            lab = measurements.measure_lab(
                self._workspace, imatrix, self._dataset, LabProgress(self._status), self._status
            )
        self._status.erase()
        return SpeedCurve(SizeCurve(plan, lab.divergences), self._time), imatrix

    def _write(self, point: "FitPoint", imatrix: Path, *, replace_file: bool) -> float:
        """Write the file, and return its tokens per second."""
        from cli.quantize.fit_report import choice_line
        from cli.quantize.progress import QuantizationProgress
        from localinfer.fit.measurements import make_base_plan, measure_decode_speed
        from localinfer.quantization import quantize
        from localinfer.quantization.budget import BASE_RECIPE, with_named_recipe
        from localinfer.quantization.pipeline import write_plan
        from localinfer.quantization.plan import Request

        screen.note(choice_line(point))
        request = Request(BASE_RECIPE, imatrix=imatrix)
        plan = with_named_recipe(make_base_plan(self._source, imatrix), request, point.types)
        options = quantize.OutputOptions(replace=replace_file)
        progress = QuantizationProgress(plan, self._status, prints_tensors=False)
        write_plan(
            plan, self._out, threads=self._threads, options=options, progress=progress, compiling=self._status
        )  # fmt: skip
        speed = measure_decode_speed(self._out, self._threads, self._status.show, self._status)
        self._status.erase()
        return speed

    def _check(self) -> "tuple[Mean, list[SpeculationSpeed]]":
        """Measure the divergence of the new file, and its speed with kinds of speculative decoding."""
        from localinfer.fit import measurements
        from localinfer.fit.speculation import measure_speculation

        status = self._status
        divergence = measurements.measure_divergence(
            self._workspace, self._out, status.percentage("KL divergence:"), status
        )
        found = measure_speculation(
            self._out, self._workspace.passages.held_out, threads=self._threads,
            draft_model=self._options.draft_model, on_step=status.percentage("speculative decoding:"), progress=status,
        )  # fmt: skip
        status.erase()
        return divergence, found


def measurable_tensors(source: "Source") -> Collection[str]:
    """Return the tensors that may get another type. Raises UsageError for a source that is quantized."""
    from localinfer.lab.measurement import measurable_types
    from localinfer.quantization.budget import BASE_RECIPE
    from localinfer.quantization.plan import Request, make_plan

    return measurable_types(make_plan(source, Request(BASE_RECIPE, allow_requantize=True))).keys()


def require_same_tensors(tensors: Collection[str], lab: Path) -> None:
    """Raise UsageError if a lab file belongs to another model."""
    from localinfer.lab.lab_file import read_lab

    if set(tensors) != set(read_lab(lab).tensors):
        raise UsageError(f"--lab: {lab}: has the tensors of another model")


def resolve_threads(given: int) -> int:
    """Return the number of threads; 0 stands for the physical cores."""
    from localinfer.machine.resources import default_threads

    return given or default_threads()


def shown_path(path: Path) -> Path:
    """Return the path relative to the current folder, if it is inside."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path

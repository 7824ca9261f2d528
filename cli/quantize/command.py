"""The command `localinfer quantize`: quantize a GGUF file, or convert and quantize a checkpoint directory.

Arguments and flags are those of llama-quantize. `cli.quantize.arguments` parses them, `localinfer.quantization` chooses
the types and does the work, and `cli.quantize.progress` shows the progress.
"""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cli import screen
from cli.loading import find_or_fetch
from cli.output_files import writable_path, write_atomically
from cli.quantize import flags
from cli.quantize.arguments import (
    Calibration,
    Task,
    parse_calibration,
    parse_effort,
    parse_layers,
    parse_metadata,
    parse_positionals,
    parse_target,
    parse_target_positionals,
    parse_type_overrides,
)
from cli.text_input import read_text_file
from localinfer.errors import UsageError

if TYPE_CHECKING:
    from localinfer.evaluation.chunks import Chunks
    from localinfer.gguf.source import Field, Source
    from localinfer.quantization.plan import QuantizationPlan
    from localinfer.quantization.report import Report

REPORTS = (".html", ".json")
CHUNK = 512  # tokens per chunk of calibration data


def quantize_command(
    source: flags.Source,
    words: flags.Words = None,
    target_size: flags.TargetSize = None,
    target_bpw: flags.TargetBits = None,
    imatrix: flags.Imatrix = None,
    include_weights: flags.IncludeWeights = None,
    exclude_weights: flags.ExcludeWeights = None,
    calibrate: flags.Calibrate = None,
    calibrate_chunks: flags.CalibrateChunks = None,
    effort: flags.Effort = None,
    target_model_dir: flags.TargetModelDir = None,
    pure: flags.Pure = False,
    leave_output_tensor: flags.LeaveOutputTensor = False,
    output_tensor_type: flags.OutputTensorType = None,
    token_embedding_type: flags.TokenEmbeddingType = None,
    tensor_type: flags.TensorType = None,
    tensor_type_file: flags.TensorTypeFile = None,
    override_kv: flags.OverrideKv = None,
    prune_layers: flags.PruneLayers = None,
    allow_requantize: flags.AllowRequantize = False,
    keep_split: flags.KeepSplit = False,
    report: flags.ReportFile = None,
    dry_run: flags.DryRun = False,
    force: flags.Force = False,
) -> None:
    """Quantize or convert a model.

    The default of OUT is ggml-model-TYPE.gguf next to the source. OUT is written atomically. TYPE is a recipe of
    llama.cpp, such as Q4_K_M, which gives some tensors more bits than others, or its number. Metadata is preserved.

    With --calibrate, the model evaluates a text layer by layer, and error feedback (GPTQ) compensates the quantization
    error of each column in the columns after it. This takes long. If it is interrupted, the same command resumes after
    the last finished layer.

    \b
      localinfer quantize model-f16.gguf model.gguf Q4_K_M
      localinfer quantize checkpoint/ model.gguf Q4_K_M --imatrix imatrix.gguf
      localinfer quantize model-f16.gguf model.gguf Q4_K_M --calibrate calibration.txt
      localinfer quantize model-f16.gguf Q4_K_M --dry-run
      localinfer quantize model-f16.gguf --target-size 700MB
      localinfer quantize model-00001-of-00002.gguf joined.gguf COPY
    """
    target = parse_target(target_size, target_bpw)
    positionals = parse_target_positionals(words or []) if target else parse_positionals(words or [])
    if target and pure:
        raise UsageError("--pure: cannot be combined with a target")
    others = {"--imatrix": imatrix, "--keep-split": keep_split, "--prune-layers": prune_layers, "--report": report}
    calibration = parse_calibration(calibrate, calibrate_chunks, others, effort)
    effort = parse_effort(effort, calibration)
    overrides = parse_type_overrides(
        pure, leave_output_tensor, output_tensor_type, token_embedding_type, tensor_type or [], tensor_type_file
    )
    fields = parse_metadata(override_kv or [])
    pruned = parse_layers(prune_layers)

    from localinfer.quantization.plan import Request

    request = Request(
        recipe=positionals.recipe or "",
        overrides=overrides,
        allow_requantize=allow_requantize,
        fields=fields,
        imatrix=imatrix,
        included=tuple(include_weights or ()),
        excluded=tuple(exclude_weights or ()),
        pruned=pruned,
        calibrated=calibration is not None,
    )
    report_path = writable_path("--report", report, REPORTS) if report is not None else None
    task = Task(positionals, request, target, effort, keep_split, force, report_path, calibration, target_model_dir)
    if dry_run:
        print_dry_run(source, task)
    elif calibration:
        run_calibrated(source, task, calibration)
    else:
        run(source, task)


def resolve_threads(given: int | None) -> int:
    from localinfer.options import from_environment, merge

    if wanted := given or merge(from_environment(os.environ)).threads:
        return wanted

    from localinfer.runtime.machine import default_threads

    return default_threads()


def open_source(name: str, task: Task, status: screen.Status) -> "Source":
    """Open a GGUF file, model or checkpoint directory, without the layers to prune."""
    from localinfer import file_operations

    path = Path(name) if Path(name).is_dir() else find_or_fetch(name, status)
    return file_operations.open_source(path, task.target_model_dir, task.request.pruned)


def print_dry_run(name: str, task: Task) -> None:
    """Print the table of a dry run to stdout."""
    from cli.quantize.progress import dry_table

    status = screen.Status()
    plan = choose_types(open_source(name, task, status), task, status)
    print("\n".join(dry_table(plan)))
    warn_missing_importance(plan)
    if problem := plan.problem:
        screen.warn(str(problem))


def run(name: str, task: Task) -> None:
    from cli import sigbus_handler
    from cli.quantize.progress import QuantizationProgress, summary_lines
    from localinfer.quantization.pipeline import uses_feedback, write_plan
    from localinfer.quantization.quantize import OutputOptions
    from localinfer.quantization.report import Report

    status = screen.Status()
    source = open_source(name, task, status)
    sigbus_handler.install(screen.one_line(" or ".join(map(str, source.files))))
    plan = choose_types(source, task, status)
    if plan.problem:
        raise plan.problem
    warn_missing_importance(plan)
    if task.effort == "max" and not uses_feedback(plan, task.effort):
        screen.warn("--effort max: requires an imatrix with covariances or --calibrate; using --effort normal")
    label = task.target.label if task.target else task.positionals.recipe
    out = task.positionals.out or default_output(source.path, f"ggml-model-{label}.gguf")
    progress, report = QuantizationProgress(plan, status), Report(plan) if task.report_path else None
    written = write_plan(
        plan,
        out,
        effort=task.effort,
        threads=resolve_threads(task.positionals.threads),
        options=OutputOptions(task.replace, task.keep_split),
        progress=progress,
        compiling=status,
        observer=report,
    )
    status.erase()
    for line in summary_lines(plan, written, progress.seconds):
        screen.note(line)
    if task.report_path and report:
        write_report(task.report_path, report)


def warn_missing_importance(plan: "QuantizationPlan") -> None:
    if names := plan.tensors_without_importance:
        more = f" and {len(names) - 3} others" if len(names) > 3 else ""
        screen.warn(f"not in the importance matrix: {screen.one_line(', '.join(names[:3]))}{more}")


def run_calibrated(name: str, task: Task, calibration: Calibration) -> None:
    from cli import sigbus_handler
    from cli.quantize.calibration_progress import CalibrationProgress
    from cli.quantize.progress import summary_lines
    from localinfer.quantization.calibrate import calibrate
    from localinfer.quantization.feedback_encoders import compile_feedback
    from localinfer.quantization.quantize import compile_kernels

    status, text = screen.Status(), read_text_file(calibration.file)
    source = open_runnable_source(name, task, status)
    sigbus_handler.install(screen.one_line(str(source.path)))
    with status.busy("tokenizing the text"):
        chunks = tokenized_chunks(source.path, text, calibration)
    described = {**dataset_metadata(calibration.file, len(chunks)), **task.request.fields}
    task = task._replace(request=replace(task.request, fields=described))
    plan = choose_types(source, task, status)
    if plan.problem:
        raise plan.problem
    label = task.target.label if task.target else task.positionals.recipe
    out = task.positionals.out or default_output(source.path, f"ggml-model-{label}.gguf")
    compile_kernels(plan.old_types, plan.changed_types, task.search, status)
    compile_feedback(plan.changed_types, status)
    progress = CalibrationProgress(plan, status)
    try:
        calibrate(
            plan,
            out,
            chunks,
            threads=resolve_threads(task.positionals.threads),
            replace=task.replace,
            observer=progress,
            compiling=status,
        )
    except (KeyboardInterrupt, SystemExit):
        status.erase()
        progress.note_resumable()
        raise
    status.erase()
    for line in summary_lines(plan, [out], progress.seconds):
        screen.note(line)


def open_runnable_source(name: str, task: Task, status: screen.Status) -> "Source":
    """Open a source that can be run. Raises UsageError for a checkpoint directory."""
    if Path(name).is_dir():
        raise UsageError(
            f"--calibrate: {name}: must be a GGUF file; convert it with `localinfer quantize {name} FILE F16`"
        )
    return open_source(name, task, status)


def tokenized_chunks(path: Path, text: str, calibration: Calibration) -> "Chunks":
    """Tokenize the calibration text and split it into chunks. Raises UsageError if it is too short."""
    from localinfer import tokenizer
    from localinfer.evaluation.chunks import split_text
    from localinfer.gguf.reader import open_gguf

    found = tokenizer.from_gguf(open_gguf(path))
    return split_text(found, text, CHUNK, max_chunks=calibration.max_chunks, option="--calibrate", hint="")


def dataset_metadata(file: str, chunks: int) -> "dict[str, Field]":
    """Return metadata that describes the calibration data, with the keys of llama.cpp for importance matrices."""
    from localinfer.gguf.source import Field

    dataset = Field.text(file.encode("utf-8", "surrogateescape"))
    return {"quantize.imatrix.dataset": dataset, "quantize.imatrix.chunks_count": Field.uint32(chunks)}


def choose_types(source: "Source", task: Task, status: screen.Status) -> "QuantizationPlan":
    """Return the types that the recipe gives, or those found for a target size."""
    if task.target is None:
        from localinfer.quantization.plan import make_plan

        return make_plan(source, task.request)

    from cli.quantize.progress import MeasurementProgress
    from localinfer.quantization.budget import plan_for_target

    measuring = MeasurementProgress(status)
    plan = plan_for_target(
        source,
        task.request,
        task.target,
        effort=task.search,
        threads=resolve_threads(task.positionals.threads),
        keep_split=task.keep_split,
        compiling=status,
        measuring=measuring,
    )
    status.erase()
    if line := measuring.summary_line():
        screen.note(line)
    else:
        screen.warn(f"{task.target.label}: even the best types are smaller than the target; using them")
    return plan


def write_report(path: Path, report: "Report") -> None:
    """Write the report as an HTML page or as JSON, by the file extension."""
    from localinfer.quantization.report_page import render_page

    found = report.to_dict()
    text = render_page(found) if path.suffix.lower() == ".html" else json.dumps(found, indent=1) + "\n"
    write_atomically(path, text.encode("utf-8", "surrogateescape"))
    screen.note(f"report: {screen.one_line(str(path))}")


def default_output(source: Path, name: str) -> Path:
    """Return the path of `name` in a checkpoint's directory, or next to a source file."""
    return (source if source.is_dir() else source.parent) / name

"""`localinfer quantize`: a model in a smaller type, from a GGUF file or a checkpoint directory.

Arguments and flags are llama-quantize's. What is asked for is read in `cli.quantizing.asked` and handed on here; types
are chosen in `localinfer.quantizing.mixture`, the work is done in `localinfer.quantizing.quantize`, and what is seen of
it is drawn in `cli.quantizing.quantize_screen`.
"""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cli import screen
from cli.files import promised, write_whole
from cli.loading import fetched
from cli.quantizing import flags
from cli.quantizing.asked import (
    Calibration,
    Task,
    read_calibration,
    read_effort,
    read_fields,
    read_layers,
    read_target,
    read_wishes,
    read_words,
    read_words_of_target,
)
from cli.texts import from_file
from localinfer.errors import UsageError

if TYPE_CHECKING:
    from localinfer.files.source import Field, Source
    from localinfer.judging.chunks import Chunks
    from localinfer.quantizing.mixture import Mixture
    from localinfer.quantizing.report import Report

REPORTS = (".html", ".json")
CHUNK = 512  # tokens, of a text to calibrate on


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
    """Write a model in a smaller type.

    OUT is ggml-model-TYPE.gguf beside the source unless it is given, and appears when it is whole. TYPE is a recipe,
    which gives some tensors more bits than others just as llama.cpp does, or its number. Metadata stays as it is.

    With --calibrate the model reads the text, layer by layer, and the error of each weight is made up for by others. It
    takes long; when it is interrupted, the same command goes on behind the last layer that was finished.

    \b
      localinfer quantize model-f16.gguf model.gguf Q4_K_M
      localinfer quantize checkpoint/ model.gguf Q4_K_M --imatrix imatrix.gguf
      localinfer quantize model-f16.gguf model.gguf Q4_K_M --calibrate calibration.txt
      localinfer quantize model-f16.gguf Q4_K_M --dry-run
      localinfer quantize model-f16.gguf --target-size 700MB
      localinfer quantize model-00001-of-00002.gguf joined.gguf COPY
    """
    target = read_target(target_size, target_bpw)
    asked = read_words_of_target(words or []) if target else read_words(words or [])
    if target and pure:
        raise UsageError("--pure: with a target each matrix has a type of its own")
    others = {"--imatrix": imatrix, "--keep-split": keep_split, "--prune-layers": prune_layers, "--report": report}
    calibration = read_calibration(calibrate, calibrate_chunks, others, effort)
    effort = read_effort(effort, calibration)
    wishes = read_wishes(
        pure, leave_output_tensor, output_tensor_type, token_embedding_type, tensor_type or [], tensor_type_file
    )
    fields = read_fields(override_kv or [])
    pruned = read_layers(prune_layers)

    from localinfer.quantizing.mixture import Request

    request = Request(
        recipe=asked.recipe or "",
        wishes=wishes,
        allow_requantize=allow_requantize,
        fields=fields,
        imatrix=imatrix,
        included=tuple(include_weights or ()),
        excluded=tuple(exclude_weights or ()),
        pruned=pruned,
        calibrated=calibration is not None,
    )
    page = promised("--report", report, REPORTS) if report is not None else None
    task = Task(asked, request, target, effort, keep_split, force, page, calibration, target_model_dir)
    if dry_run:
        show(source, task)
    elif calibration:
        run_calibrated(source, task, calibration)
    else:
        run(source, task)


def threads_for(given: int | None) -> int:
    from localinfer.options import from_environment, merge

    if wanted := given or merge(from_environment(os.environ)).threads:
        return wanted

    from localinfer.engine.machine import default_threads

    return default_threads()


def opened(name: str, task: Task, status: screen.Status) -> "Source":
    """The source that a user means, less the layers that are not wanted."""
    from localinfer.quantizing.prune import without_layers

    if Path(name).is_dir():
        from localinfer.checkpoint import open_checkpoint

        source = open_checkpoint(name, task.model)
    else:
        from localinfer.files.split import from_gguf

        source = from_gguf(fetched(name, status))
    return without_layers(source, task.request.pruned)


def show(name: str, task: Task) -> None:
    """The table of a dry run, on stdout."""
    from cli.quantizing.quantize_screen import dry_table

    status = screen.Status()
    mixture = mixed(opened(name, task, status), task, status)
    print("\n".join(dry_table(mixture)))
    warn_of_unweighted(mixture)
    if problem := mixture.problem:
        screen.warn(str(problem))


def run(name: str, task: Task) -> None:
    from cli import guard
    from cli.quantizing.quantize_screen import Drawing, closing_lines
    from localinfer.quantizing.assumed import with_assumed
    from localinfer.quantizing.gptq import compile_feedback, feedback_encoders, triangles_of
    from localinfer.quantizing.quantize import compile_for, encoders, quantize
    from localinfer.quantizing.report import Report
    from quant.encoders.feedback import ROWS
    from quant.encoders.low_rank import LANES

    status = screen.Status()
    source = opened(name, task, status)
    guard.against_shrinking(screen.one_line(" or ".join(map(str, source.files))))
    mixture = mixed(source, task, status)
    if mixture.problem:
        raise mixture.problem
    warn_of_unweighted(mixture)
    label = task.target.label if task.target else task.words.recipe
    out = task.words.out or beside(source.path, f"ggml-model-{label}.gguf")
    compile_for(mixture.old_types, mixture.changed_types, task.search, status, directed=bool(mixture.directions))
    threads, with_feedback = threads_for(task.words.threads), task.effort == "max" and bool(mixture.covariances)
    importance = with_assumed(source, mixture.importance, task.search)
    encoder_of = encoders(task.search, importance, mixture.directions)
    if task.effort == "max" and not with_feedback:
        screen.warn("--effort max: nothing tells which inputs go together (--calibrate does): as --effort normal")
    if with_feedback:
        compile_feedback(mixture.changed_types, status)
        encoder_of = feedback_encoders(importance, triangles_of(mixture.covariances, threads), mixture.directions)
    drawing, report = Drawing(mixture, status), Report(mixture) if task.page else None
    written = quantize(
        source,
        out,
        mixture.types,
        encoder_of=encoder_of,
        fields=mixture.fields,
        least_rows=ROWS if with_feedback else LANES if mixture.directions else 1,
        threads=threads,
        replace=task.replace,
        keep_split=task.keep_split,
        progress=drawing,
        watch=report,
    )
    status.erase()
    for line in closing_lines(mixture, written, drawing.seconds):
        screen.note(line)
    if task.page and report:
        write_report(task.page, report)


def warn_of_unweighted(mixture: "Mixture") -> None:
    if names := mixture.unweighted:
        more = f" and {len(names) - 3} others" if len(names) > 3 else ""
        screen.warn(f"not in the importance matrix: {screen.one_line(', '.join(names[:3]))}{more}")


def run_calibrated(name: str, task: Task, calibration: Calibration) -> None:
    from cli import guard
    from cli.quantizing.calibration_screen import Walking
    from cli.quantizing.quantize_screen import closing_lines
    from localinfer.quantizing.calibrate import calibrate
    from localinfer.quantizing.gptq import compile_feedback
    from localinfer.quantizing.quantize import compile_for

    status, text = screen.Status(), from_file(calibration.file)
    source = opened_to_run(name, task, status)
    guard.against_shrinking(screen.one_line(str(source.path)))
    with status.busy("cutting the text into chunks"):
        chunks = chunks_of(source.path, text, calibration)
    described = {**fields_of_text(calibration.file, len(chunks)), **task.request.fields}
    task = task._replace(request=replace(task.request, fields=described))
    mixture = mixed(source, task, status)
    if mixture.problem:
        raise mixture.problem
    label = task.target.label if task.target else task.words.recipe
    out = task.words.out or beside(source.path, f"ggml-model-{label}.gguf")
    compile_for(mixture.old_types, mixture.changed_types, task.search, status)
    compile_feedback(mixture.changed_types, status)
    walking = Walking(mixture, status)
    try:
        calibrate(
            mixture,
            out,
            chunks,
            threads=threads_for(task.words.threads),
            replace=task.replace,
            spectator=walking,
            compiling=status,
        )
    except (KeyboardInterrupt, SystemExit):
        status.erase()
        walking.say_what_is_kept()
        raise
    status.erase()
    for line in closing_lines(mixture, [out], walking.seconds):
        screen.note(line)


def opened_to_run(name: str, task: Task, status: screen.Status) -> "Source":
    """The source, if it is no directory: it has to run. Raises UsageError."""
    if Path(name).is_dir():
        raise UsageError(f"--calibrate: {name} cannot be run: `localinfer quantize {name} FILE F16` makes a file of it")
    return opened(name, task, status)


def chunks_of(path: Path, text: str, calibration: Calibration) -> "Chunks":
    """The text as the model reads it. Raises UsageError where it is too short."""
    from localinfer import tokenizer
    from localinfer.files.gguf import open_gguf
    from localinfer.judging.chunks import cut

    found = tokenizer.from_gguf(open_gguf(path))
    return cut(found, text, CHUNK, most=calibration.most, option="--calibrate", hint="")


def fields_of_text(file: str, chunks: int) -> "dict[str, Field]":
    """What was calibrated on, under the keys that llama.cpp has for importance matrices."""
    from localinfer.files.source import Field

    dataset = Field.text(file.encode("utf-8", "surrogateescape"))
    return {"quantize.imatrix.dataset": dataset, "quantize.imatrix.chunks_count": Field.uint32(chunks)}


def mixed(source: "Source", task: Task, status: screen.Status) -> "Mixture":
    """The types that a recipe gives, or those that are found for a target."""
    if task.target is None:
        from localinfer.quantizing.mixture import mix

        return mix(source, task.request)

    from cli.quantizing.quantize_screen import Measuring
    from localinfer.quantizing.budget import fit

    measuring = Measuring(status)
    mixture = fit(
        source,
        task.request,
        task.target,
        effort=task.search,
        threads=threads_for(task.words.threads),
        keep_split=task.keep_split,
        compiling=status,
        measuring=measuring,
    )
    status.erase()
    if line := measuring.closing_line():
        screen.note(line)
    else:
        screen.warn(f"{task.target.label}: there is room for more than the best types, which are taken")
    return mixture


def write_report(path: Path, report: "Report") -> None:
    """As a page to read, or for machines."""
    from localinfer.quantizing.report_page import page

    found = report.as_object()
    text = page(found) if path.suffix.lower() == ".html" else json.dumps(found, indent=1) + "\n"
    write_whole(path, text.encode("utf-8", "surrogateescape"))
    screen.note(f"report: {screen.one_line(str(path))}")


def beside(source: Path, name: str) -> Path:
    """In a checkpoint's directory, or in the directory of a file."""
    return (source if source.is_dir() else source.parent) / name

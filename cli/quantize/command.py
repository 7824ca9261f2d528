"""The command `localinfer quantize`: quantize a GGUF file, or convert and quantize a checkpoint directory.

Arguments and flags are those of llama-quantize. `cli.quantize.arguments` parses them, `localinfer.quantization` chooses
the types and does the work, and `cli.quantize.progress` shows the progress.
"""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cli.arguments.flags import with_options
from cli.files.output_files import write_atomically
from cli.files.text_input import read_text_file
from cli.models.loading import find_or_fetch
from cli.quantize import flags
from cli.quantize.arguments import Calibration, Task, parse_task
from cli.terminal import screen
from localinfer.errors import UsageError
from localinfer.escaping import shell_word

if TYPE_CHECKING:
    from localinfer.gguf.source import Source
    from localinfer.quantization.plan import QuantizationPlan
    from localinfer.quantization.report import Report


@with_options()
def quantize_command(
    source: flags.SourceArgument,
    *,
    words: flags.Words = None,
    types: flags.TypeOptions,
    importance: flags.ImportanceOptions,
    reading: flags.SourceOptions,
    output: flags.OutputOptions,
) -> None:
    """Quantize or convert a model.

    SOURCE is a GGUF file or a checkpoint directory of Hugging Face. TYPE is a recipe of llama.cpp, such as Q4_K_M, or
    its number. IQ2_K to IQ6_K, IQ2_KS to IQ5_KS, IQ2_KL, IQ4_KSS and IQ1_KT to IQ4_KT are recipes of ik_llama.cpp;
    llama.cpp cannot read them. OUT defaults to ggml-model-TYPE.gguf next to the source. Metadata is preserved.

    With --calibrate, the model evaluates a text layer by layer, and error feedback (GPTQ) compensates the quantization
    error of each column in the columns after it. This is slow. If it is interrupted, the same command resumes after
    the last finished layer.

    \b
    Examples:
      localinfer quantize model-f16.gguf model.gguf Q4_K_M
      localinfer quantize gemma-3-4b-it/ mmproj.gguf F16 --mmproj
      localinfer quantize checkpoint/ model.gguf Q4_K_M --imatrix imatrix.gguf
      localinfer quantize model-f16.gguf model.gguf Q4_K_M --calibrate calibration.txt
      localinfer quantize model-f16.gguf Q4_K_M --dry-run
      localinfer quantize model-f16.gguf COPY --prune-layers auto:4 --prune-text text.txt
      localinfer quantize model-f16.gguf --target-size 700MB --lab lab.json
      localinfer quantize model-f16.gguf model.gguf --recipe recipe.json
      localinfer quantize model-00001-of-00002.gguf joined.gguf COPY
    """
    task = with_chosen_layers(parse_task(words or [], types, importance, reading, output), source)
    if output.dry_run:
        print_dry_run(source, task)
    elif task.calibration:
        run_calibrated(source, task, task.calibration)
    else:
        run(source, task)


def with_chosen_layers(task: Task, name: str) -> Task:
    """Return the task with the layers to remove, if a search is to choose them."""
    if task.layer_search is None:
        return task
    from cli.quantize.layer_search import choose_layers

    status, text = screen.Status(), read_text_file(task.layer_search.file)
    source = open_runnable_source(name, "--prune-layers", task, status)
    threads = resolve_threads(task.positionals.threads)
    pruned = choose_layers(source, text, task.layer_search.n_layers, threads, status)
    return task._replace(request=replace(task.request, pruned=pruned))


def resolve_architecture_file(given: str) -> str:
    """Return the Python file of the compute graph of a converted checkpoint, or "" for a built-in architecture."""
    from localinfer.options import from_environment, merge

    return given or merge(from_environment(os.environ)).architecture


def resolve_threads(given: int | None) -> int:
    from localinfer.options import from_environment, merge

    if wanted := given or merge(from_environment(os.environ)).threads:
        return wanted

    from localinfer.machine.resources import default_threads

    return default_threads()


def open_source(name: str, task: Task, status: screen.Status) -> "Source":
    """Open a GGUF file, model or checkpoint directory, without the layers to prune.

    Raises UsageError for an option that describes a checkpoint, if the source is none.
    """
    from localinfer import file_operations

    for_checkpoints = {
        "--conversion": task.conversion, "--architecture": task.architecture_file,
        "--target-model-dir": task.target_model_dir,
    }  # fmt: skip
    for option, given in for_checkpoints.items():
        if given and not task.remote and not Path(name).is_dir():
            raise UsageError(f"{option}: {name}: must be a checkpoint directory")
    if task.remote:
        path = fetch_checkpoint(name, status)
    else:
        path = Path(name) if Path(name).is_dir() else find_or_fetch(name, status)
    return file_operations.open_source(
        path, task.target_model_dir, task.request.pruned, task.adapters, task.conversion
    )


def make_projector_plan(name: str, task: Task, status: screen.Status) -> "QuantizationPlan":
    """Return the plan of converting a checkpoint's encoder. Raises UsageError for a GGUF file."""
    from localinfer.conversion.projector import open_projector
    from localinfer.quantization import projector_plan

    path = fetch_checkpoint(name, status) if task.remote else Path(name)
    if path.is_file():
        raise UsageError(f"--mmproj: {name}: must be a checkpoint directory")
    return projector_plan.make_projector_plan(open_projector(path), task.request.recipe, task.request.fields)


def make_plan(name: str, task: Task, status: screen.Status) -> "QuantizationPlan":
    """Open the source and return its plan."""
    if task.mmproj:
        return make_projector_plan(name, task, status)
    return choose_types(open_source(name, task, status), task, status)


def fetch_checkpoint(repo: str, status: screen.Status) -> Path:
    from localinfer.hub import huggingface_download

    screen.note(f"fetching {screen.one_line(repo)}")
    with status.busy("waiting for the server"):
        return huggingface_download.fetch_checkpoint(repo.removeprefix("hf:"), status)


def print_dry_run(name: str, task: Task) -> None:
    """Print the table of a dry run to stdout."""
    from cli.quantize.progress import dry_table
    from localinfer.quantization.pipeline import check_architecture_file

    status = screen.Status()
    plan = make_plan(name, task, status)
    check_architecture_file(plan, resolve_architecture_file(task.architecture_file))
    screen.write("\n".join(dry_table(plan)) + "\n")
    warn_missing_importance(plan)
    if problem := plan.problem:
        screen.warn(str(problem))


def run(name: str, task: Task) -> None:
    from cli.models import sigbus_handler
    from cli.quantize.progress import QuantizationProgress, summary_lines
    from localinfer.quantization.pipeline import uses_feedback, write_plan
    from localinfer.quantization.quantize import OutputOptions
    from localinfer.quantization.report import Report

    status = screen.Status()
    if task.scale_pairs:
        plan = choose_types(open_runnable_source(name, "--scale-pairs", task, status), task, status)
    else:
        plan = make_plan(name, task, status)
    sigbus_handler.install(screen.one_line(" or ".join(map(str, plan.source.files))))
    if plan.problem:
        raise plan.problem
    warn_missing_importance(plan)
    if task.scale_pairs:
        plan = search_scale_pairs(plan, task, status)
    if task.effort == "max" and not uses_feedback(plan, task.effort):
        screen.warn("--effort max: requires an imatrix with covariances or --calibrate; using --effort normal")
    out = output_path(plan.source, task)
    progress, report = QuantizationProgress(plan, status), Report(plan) if task.report_path else None
    written = write_plan(
        plan,
        out,
        effort=task.effort,
        threads=resolve_threads(task.positionals.threads),
        options=OutputOptions(task.replace, task.keep_split, resolve_architecture_file(task.architecture_file)),
        progress=progress,
        compiling=status,
        observer=report,
    )
    status.erase()
    for line in summary_lines(plan, written, progress.seconds):
        screen.note(line)
    if task.report_path and report:
        write_report(task.report_path, report)


def search_scale_pairs(plan: "QuantizationPlan", task: Task, status: screen.Status) -> "QuantizationPlan":
    """Return the plan with the factors of its scale pairs."""
    from localinfer.quantization.scale_pairs import with_scale_pairs

    def show(done: int, count: int) -> None:
        status.show(f"scale pairs: {done} of {count}")

    plan = with_scale_pairs(
        plan, effort=task.effort, threads=resolve_threads(task.positionals.threads), progress=show, compiling=status
    )
    status.erase()
    return plan


def warn_missing_importance(plan: "QuantizationPlan") -> None:
    if names := plan.tensors_without_importance:
        more = f" and {len(names) - 3} others" if len(names) > 3 else ""
        screen.warn(f"not in the importance matrix: {screen.one_line(', '.join(names[:3]))}{more}")


def run_calibrated(name: str, task: Task, calibration: Calibration) -> None:
    from cli.models import sigbus_handler
    from cli.quantize.calibration_progress import CalibrationProgress
    from cli.quantize.progress import summary_lines
    from localinfer.quantization.calibrate import calibrate
    from localinfer.quantization.calibration_data import read_calibration_data

    status, text = screen.Status(), read_text_file(calibration.file)
    source = open_runnable_source(name, "--calibrate", task, status)
    sigbus_handler.install(screen.one_line(str(source.path)))
    with status.busy("tokenizing the text"):
        data = read_calibration_data(source.path, text, calibration.file, calibration.max_chunks)
    task = task._replace(request=replace(task.request, fields={**data.fields, **task.request.fields}))
    plan = choose_types(source, task, status)
    if plan.problem:
        raise plan.problem
    out, progress = output_path(source, task), CalibrationProgress(plan, status)
    try:
        calibrate(
            plan,
            out,
            data.chunks,
            threads=resolve_threads(task.positionals.threads),
            replace=task.replace,
            observer=progress,
            compiling=status,
            scale_pairs=task.scale_pairs,
        )
    except (KeyboardInterrupt, SystemExit):
        status.erase()
        progress.note_resumable()
        raise
    status.erase()
    for line in summary_lines(plan, [out], progress.seconds):
        screen.note(line)


def open_runnable_source(name: str, option: str, task: Task, status: screen.Status) -> "Source":
    """Open a source that `option` runs. Raises UsageError for a checkpoint."""
    if task.remote or Path(name).is_dir():
        convert = f"localinfer quantize {shell_word(name)} FILE F16{' --remote' * task.remote}"
        raise UsageError(f"{option}: {name}: must be a GGUF file; convert it with `{convert}`")
    return open_source(name, task, status)


def choose_types(source: "Source", task: Task, status: screen.Status) -> "QuantizationPlan":
    """Return the types that the recipe gives, those of a recipe file, or those found for a target size."""
    if task.recipe_file:
        from localinfer.quantization.recipe_file import plan_for_recipe

        return plan_for_recipe(source, task.request, task.recipe_file)
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
        divergences=task.lab.divergences if task.lab else None,
        compiling=status,
        measuring=measuring,
    )
    status.erase()
    if task.lab and (divergence := task.lab.predict({name: choice.type for name, choice in plan.choices.items()})):
        screen.note(f"predicted KL divergence: {divergence:.4f} nats per token")
    if line := measuring.summary_line():
        screen.note(line)
    elif not task.lab or not plan.changed_types:
        screen.warn(f"{task.target.label}: even the best types are smaller than the target; using them")
    return plan


def write_report(path: Path, report: "Report") -> None:
    """Write the report as an HTML page or as JSON, by the file extension."""
    from localinfer.quantization.report_page import render_page

    found = report.to_dict()
    text = render_page(found) if path.suffix.lower() == ".html" else json.dumps(found, indent=1) + "\n"
    write_atomically(path, text.encode("utf-8", "surrogateescape"))
    screen.note(f"report: {screen.one_line(str(path))}")


def output_path(source: "Source", task: Task) -> Path:
    """Return OUT, or by default a file in the directory of the checkpoint, or next to the source file.

    The file of a checkpoint on the hub is not written into the cache.
    """
    label = task.target.label if task.target else task.positionals.recipe
    if task.recipe_file:
        label = task.recipe_file.path.stem
    directory = source.path if source.path.is_dir() else source.path.parent
    if task.remote:
        directory = Path()
    return task.positionals.out or directory / f"{'mmproj' if task.mmproj else 'ggml'}-model-{label}.gguf"

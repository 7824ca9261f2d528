"""`localinfer quantize`: a model in a smaller type, from a GGUF file or a checkpoint directory.

Arguments and flags are llama-quantize's. What is asked for is read here and handed on; types are
chosen in `localinfer.quantizing.mixture`, the work is done in `localinfer.quantizing.quantize`, and what is seen of it
is drawn in `cli.quantizing.quantize_screen`.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeVar

import typer

from cli import screen
from cli.arguments.nearest import did_you_mean
from cli.files import promised, write_whole
from cli.loading import fetched
from cli.texts import from_file
from localinfer.errors import UsageError
from localinfer.quantizing.recipes import COPY, RECIPES

if TYPE_CHECKING:
    from localinfer.files.source import Field, Source
    from localinfer.judging.chunks import Chunks
    from localinfer.quantizing.budget import Target
    from localinfer.quantizing.mixture import Mixture, Request
    from localinfer.quantizing.report import Report

TYPES = f"{', '.join(RECIPES)}, or {COPY}, which changes none"
REPORTS = (".html", ".json")
EFFORTS = ("fast", "normal", "max")  # the last searches as the second does, and passes errors on
CHUNKS, CHUNK = 64, 512  # of a text to calibrate on, and the tokens of each
NOT_CALIBRATED = {
    "--imatrix": "with --calibrate it is measured which columns matter: leave one of them out",
    "--keep-split": "--calibrate runs the model, which must be in one file",
    "--prune-layers": "--calibrate needs the model to be whole: prune it first, with COPY",
    "--report": "does not go together with --calibrate, which may take several runs",
    "--effort": "--calibrate is done with the most effort: leave one of them out",
}
Value = TypeVar("Value")


class Words(NamedTuple):
    """The arguments behind SOURCE. `out` may be left to us, and so `threads`; a target has no recipe yet."""

    out: Path | None
    recipe: str | None
    threads: int | None


class Calibration(NamedTuple):
    """A text's name, and how many chunks of it are read at most."""

    file: str
    most: int


class Task(NamedTuple):
    """All that is asked for. With a target, the request's recipe does not matter."""

    words: Words
    request: "Request"
    target: "Target | None"
    effort: str
    keep_split: bool
    replace: bool
    page: Path | None
    calibration: Calibration | None

    @property
    def search(self) -> str:
        """The effort of encoders."""
        return "normal" if self.effort == "max" else self.effort


def quantize_command(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A GGUF file, a name, or a checkpoint directory.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OUT] TYPE [THREADS]", help=f"What to write, in which type: {TYPES}."),
    ] = None,
    target_size: Annotated[
        str | None,
        typer.Option("--target-size", metavar="SIZE", help="No TYPE: the best types for a file of 700MB, 650MiB, ..."),
    ] = None,
    target_bpw: Annotated[
        str | None,
        typer.Option("--target-bpw", metavar="BITS", help="No TYPE: the best types for so many bits a weight."),
    ] = None,
    imatrix: Annotated[
        Path | None, typer.Option("--imatrix", metavar="FILE", help="Which columns matter: see `localinfer imatrix`.")
    ] = None,
    include_weights: Annotated[
        list[str] | None,
        typer.Option("--include-weights", metavar="TEXT", help="Use the imatrix only for names with this in them."),
    ] = None,
    exclude_weights: Annotated[
        list[str] | None,
        typer.Option("--exclude-weights", metavar="TEXT", help="Do not use it for names with this in them."),
    ] = None,
    calibrate: Annotated[
        str | None,
        typer.Option(
            "--calibrate", metavar="FILE", help="Make up for errors, layer by layer, on this text: --effort max."
        ),
    ] = None,
    calibrate_chunks: Annotated[
        int | None,
        typer.Option(
            "--calibrate-chunks", metavar="N", min=2, help="So many chunks of 512 tokens of it [default: 64, or all]."
        ),
    ] = None,
    effort: Annotated[
        str | None,
        typer.Option(
            "--effort",
            metavar="|".join(EFFORTS),
            help="How long to search; max: make up for errors, too, by an imatrix with covariances [default: normal].",
        ),
    ] = None,
    pure: Annotated[bool, typer.Option("--pure", help="One type for all matrices.")] = False,
    leave_output_tensor: Annotated[
        bool, typer.Option("--leave-output-tensor", help="Leave output.weight as it is.")
    ] = False,
    output_tensor_type: Annotated[
        str | None, typer.Option("--output-tensor-type", metavar="TYPE", help="The type of output.weight.")
    ] = None,
    token_embedding_type: Annotated[
        str | None, typer.Option("--token-embedding-type", metavar="TYPE", help="The type of the token embeddings.")
    ] = None,
    tensor_type: Annotated[
        list[str] | None,
        typer.Option("--tensor-type", metavar="REGEX=TYPE", help="The type of tensors by name; the first one counts."),
    ] = None,
    tensor_type_file: Annotated[
        Path | None, typer.Option("--tensor-type-file", metavar="FILE", help="A file with more of REGEX=TYPE.")
    ] = None,
    override_kv: Annotated[
        list[str] | None,
        typer.Option("--override-kv", metavar="KEY=TYPE:VALUE", help="Other metadata; int, float, bool or str."),
    ] = None,
    prune_layers: Annotated[
        str | None,
        typer.Option("--prune-layers", metavar="N,...", help="Leave out these layers; the first one is 0."),
    ] = None,
    allow_requantize: Annotated[
        bool, typer.Option("--allow-requantize", help="Let quantized tensors be quantized again, at a loss.")
    ] = False,
    keep_split: Annotated[
        bool, typer.Option("--keep-split", help="As many files as the source has: OUT-00001-of-00003.gguf.")
    ] = False,
    report: Annotated[
        str | None,
        typer.Option("--report", metavar="FILE", help="Write there, .html or .json, what it cost each tensor."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show types and sizes, write nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it is there.")] = False,
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
    calibration = read_calibration(
        calibrate,
        calibrate_chunks,
        {
            "--imatrix": imatrix,
            "--keep-split": keep_split,
            "--prune-layers": prune_layers,
            "--report": report,
            "--effort": effort not in (None, "max") and effort,
        },
    )
    effort = effort or ("max" if calibration else "normal")
    if effort not in EFFORTS:
        raise UsageError(f"--effort: must be one of {', '.join(EFFORTS)}, not {effort}")

    from localinfer.quantizing.mixture import Request, parsed_field, parsed_pattern, parsed_type
    from localinfer.quantizing.prune import parsed_layers
    from localinfer.quantizing.recipes import Wishes

    patterns = [*(tensor_type or []), *words_of_file("--tensor-type-file", tensor_type_file)]
    wishes = Wishes(
        pure=pure,
        leave_output=leave_output_tensor,
        output=parsed("--output-tensor-type", parsed_type, output_tensor_type),
        token_embedding=parsed("--token-embedding-type", parsed_type, token_embedding_type),
        patterns=tuple(parsed_all("--tensor-type", parsed_pattern, patterns)),
    )
    request = Request(
        recipe=asked.recipe or "",
        wishes=wishes,
        allow_requantize=allow_requantize,
        fields=dict(parsed_all("--override-kv", parsed_field, override_kv or [])),
        imatrix=imatrix,
        included=tuple(include_weights or ()),
        excluded=tuple(exclude_weights or ()),
        pruned=parsed("--prune-layers", parsed_layers, prune_layers) or (),
        calibrated=calibration is not None,
    )
    page = promised("--report", report, REPORTS) if report is not None else None
    task = Task(asked, request, target, effort, keep_split, force, page, calibration)
    if dry_run:
        show(source, task)
    elif calibration:
        run_calibrated(source, task, calibration)
    else:
        run(source, task)


# --- what is asked for ---


def read_words(words: Sequence[str]) -> Words:
    """[OUT] TYPE [THREADS]: OUT is the first word, unless that is a type."""
    from localinfer.quantizing.recipes import recipe_named

    if not words:
        raise UsageError(f"TYPE: is missing, and no target is given; there are {TYPES}")
    named = [recipe_named(word) for word in words[:2]]
    if named[0]:
        out, recipe, rest = None, named[0], words[1:]
    elif len(named) > 1 and named[1]:
        out, recipe, rest = Path(words[0]), named[1], words[2:]
    else:
        wrong = words[len(named) - 1]
        near = did_you_mean(wrong, [*RECIPES, COPY])
        raise UsageError(f"TYPE: {wrong} is no type{near or f'; there are {TYPES}'}")
    return Words(out, recipe, threads_in(rest, "SOURCE [OUT] TYPE [THREADS]"))


def read_words_of_target(words: Sequence[str]) -> Words:
    """[OUT] [THREADS]: OUT is the first word, unless that is a number."""
    from localinfer.quantizing.recipes import recipe_named

    out = None if not words or words[0].isdecimal() else Path(words[0])
    rest = words[1 if out else 0 :]
    named = [word for word in words if recipe_named(word) and not word.isdecimal()]
    if named:
        raise UsageError(f"{named[0]}: a target chooses the types: leave it out")
    return Words(out, None, threads_in(rest, "SOURCE [OUT] [THREADS]"))


def threads_in(rest: Sequence[str], usage: str) -> int | None:
    """The last of the words, if there is one."""
    if len(rest) > 1:
        raise UsageError(f"{rest[1]}: too many arguments: {usage}")
    if rest and not (rest[0].isascii() and rest[0].isdigit() and 1 <= int(rest[0]) <= 1024):
        raise UsageError(f"THREADS: must be a number from 1 to 1024, not {rest[0]}: {usage}")
    return int(rest[0]) if rest else None


def read_target(size: str | None, bits: str | None) -> "Target | None":
    """What the file may take, if that is said."""
    if size is None and bits is None:
        return None
    if size is not None and bits is not None:
        raise UsageError("--target-size and --target-bpw: only one of them can be reached")

    from localinfer.quantizing.budget import parsed_bits, parsed_size

    found = parsed("--target-size", parsed_size, size)
    return found or parsed("--target-bpw", parsed_bits, bits)


def read_calibration(file: str | None, most: int | None, others: Mapping[str, object]) -> Calibration | None:
    """What to calibrate on, if that is asked for, and nothing of what does not go together with it."""
    if file is None:
        if most is not None:
            raise UsageError("--calibrate-chunks: of which text? --calibrate FILE names it")
        return None
    for option, given in others.items():
        if given:
            raise UsageError(f"{option}: {NOT_CALIBRATED[option]}")
    return Calibration(file, most or CHUNKS)


def parsed(option: str, parse: Callable[[str], Value], text: str | None) -> Value | None:
    return None if text is None else parsed_all(option, parse, [text])[0]


def parsed_all(option: str, parse: Callable[[str], Value], texts: Sequence[str]) -> list[Value]:
    try:
        return [parse(text) for text in texts]
    except ValueError as problem:
        raise UsageError(f"{option}: {problem}") from None


def words_of_file(option: str, path: Path | None) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split() if path else []
    except OSError as error:
        raise UsageError(f"{option}: {path}: {error.strerror}") from None
    except ValueError:
        raise UsageError(f"{option}: {path}: is not valid UTF-8") from None


def threads_for(given: int | None) -> int:
    from localinfer.engine.machine import default_threads
    from localinfer.options import from_environment, merge

    return given or merge(from_environment(os.environ)).threads or default_threads()


def opened(name: str, task: Task, status: screen.Status) -> "Source":
    """The source that a user means, less the layers that are not wanted."""
    from localinfer.checkpoint import open_checkpoint
    from localinfer.files.split import from_gguf
    from localinfer.quantizing.prune import without_layers

    source = open_checkpoint(name) if Path(name).is_dir() else from_gguf(fetched(name, status))
    return without_layers(source, task.request.pruned)


# --- what is done ---


def show(name: str, task: Task) -> None:
    """The table of a dry run, on stdout."""
    from cli.quantizing.quantize_screen import dry_table

    status = screen.Status()
    mixture = mixed(opened(name, task, status), task, status)
    print("\n".join(dry_table(mixture)))
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

    status = screen.Status()
    source = opened(name, task, status)
    guard.against_shrinking(screen.one_line(" or ".join(map(str, source.files))))
    mixture = mixed(source, task, status)
    if mixture.problem:
        raise mixture.problem
    label = task.target.label if task.target else task.words.recipe
    out = task.words.out or beside(source.path, f"ggml-model-{label}.gguf")
    compile_for(mixture.old_types, mixture.changed_types, task.search, status, centered=bool(mixture.centers))
    threads, with_feedback = threads_for(task.words.threads), task.effort == "max" and bool(mixture.covariances)
    importance = with_assumed(source, mixture.importance, task.search)
    encoder_of = encoders(task.search, importance, mixture.centers)
    if task.effort == "max" and not with_feedback:
        screen.warn("--effort max: nothing tells which inputs go together (--calibrate does): as --effort normal")
    if with_feedback:
        compile_feedback(mixture.changed_types, status)
        encoder_of = feedback_encoders(importance, triangles_of(mixture.covariances, threads), mixture.centers)
    drawing, report = Drawing(mixture, status), Report(mixture) if task.page else None
    written = quantize(
        source,
        out,
        mixture.types,
        encoder_of=encoder_of,
        fields=mixture.fields,
        least_rows=ROWS if with_feedback else 1,
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

"""Argument parsing of `localinfer quantize`. Raises UsageError with the name of the invalid argument."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from cli.arguments.suggestions import did_you_mean
from cli.files.output_files import writable_path
from cli.quantize.flags import EFFORTS, TYPES, ImportanceOptions, OutputOptions, SourceOptions, TypeOptions
from localinfer.errors import UsageError
from localinfer.quantization.recipes import COPY, RECIPES, TypeOverrides, find_recipe

if TYPE_CHECKING:
    from localinfer.gguf.source import Field
    from localinfer.lab.lab_file import Lab
    from localinfer.quantization.budget import Target
    from localinfer.quantization.plan import Request
    from localinfer.quantization.recipe_file import RecipeFile

AUTO = "auto:"  # before the number of layers to remove, which are then chosen
REPORTS = (".html", ".json")
DEFAULT_CHUNKS = 64  # maximum number of chunks of calibration data
CALIBRATION_CONFLICTS = {
    "--imatrix": "cannot be combined with --calibrate, which computes its own importance matrix",
    "--keep-split": "cannot be combined with --calibrate, which writes a single file",
    "--prune-layers": "cannot be combined with --calibrate; prune the model first with type COPY",
    "--report": "cannot be combined with --calibrate, which may take several runs",
    "--effort": "cannot be combined with --calibrate, which always uses max",
}
Value = TypeVar("Value")


class Positionals(NamedTuple):
    """The arguments after SOURCE. `out` and `threads` are None for the default, `recipe` is None without TYPE."""

    out: Path | None
    recipe: str | None
    threads: int | None


class Calibration(NamedTuple):
    """The calibration data: a text file and the maximum number of chunks."""

    file: str
    max_chunks: int


class LayerSearch(NamedTuple):
    """How many layers are removed, and the text on which the model must change least."""

    n_layers: int
    file: str


class Task(NamedTuple):
    """The parsed command line. With a target or a recipe file, the recipe of the request is ignored."""

    positionals: Positionals
    request: "Request"
    target: "Target | None"
    recipe_file: "RecipeFile | None"
    lab: "Lab | None"
    effort: str
    keep_split: bool
    replace: bool
    report_path: Path | None
    calibration: Calibration | None
    target_model_dir: str | None  # the checkpoint of the target model of a draft head
    adapters: tuple[tuple[Path, float], ...]  # of LoRA, with their scales
    remote: bool  # the source is a checkpoint on the hub
    mmproj: bool  # the encoder of the checkpoint is converted
    layer_search: LayerSearch | None  # how the layers to remove are chosen
    conversion: str | None  # the Python file that describes the checkpoint
    architecture_file: str  # the Python file of the compute graph; "": a built-in one
    scale_pairs: bool  # factors move between weights where this reduces the error

    @property
    def search(self) -> str:
        """The search effort of the encoders."""
        return "normal" if self.effort == "max" else self.effort


def parse_task(
    words: Sequence[str],
    types: TypeOptions,
    importance: ImportanceOptions,
    source: SourceOptions,
    output: OutputOptions,
) -> Task:
    """Parse the arguments after SOURCE and the options."""
    check_mmproj(types, importance, source)
    target, recipe_file = parse_target(types), parse_recipe_file(types)
    positionals = parse_positionals_without_type(words) if target or recipe_file else parse_positionals(words)
    calibration = parse_calibration(importance, output, source.prune_layers is not None)
    effort = parse_effort(importance.effort, calibration)
    overrides, fields = parse_type_overrides(types), parse_metadata(source.override_kv or [])
    pruned, layer_search = parse_layers(source.prune_layers, source.prune_text)
    check_scale_pairs(importance, effort, source.prune_layers is not None)

    from localinfer.quantization.plan import Request

    request = Request(
        recipe=positionals.recipe or "",
        overrides=overrides,
        allow_requantize=source.allow_requantize,
        fields=fields,
        imatrix=importance.imatrix,
        included=tuple(importance.include_weights or ()),
        excluded=tuple(importance.exclude_weights or ()),
        pruned=pruned,
        calibrated=calibration is not None,
    )
    inputs = [str(file) for file in (types.recipe, types.lab, source.prune_text) if file is not None]
    report = None if output.report is None else writable_path("--report", output.report, REPORTS, inputs=inputs)
    return Task(
        positionals, request, target, recipe_file, parse_lab(types), effort, output.keep_split, output.force,
        report, calibration, source.target_model_dir, parse_adapters(source), source.remote, source.mmproj,
        layer_search, source.conversion, source.architecture or "", importance.scale_pairs,
    )  # fmt: skip


def check_mmproj(types: TypeOptions, importance: ImportanceOptions, source: SourceOptions) -> None:
    """Raise UsageError for an option that concerns the text model, if only the encoder is converted."""
    if not source.mmproj:
        return
    given = {
        "--target-size": types.target_size, "--recipe": types.recipe,
        "--imatrix": importance.imatrix, "--calibrate": importance.calibrate,
        "--scale-pairs": importance.scale_pairs or None,
        "--prune-layers": source.prune_layers, "--lora": source.lora, "--lora-scaled": source.lora_scaled,
        "--target-model-dir": source.target_model_dir, "--conversion": source.conversion,
        "--architecture": source.architecture,
    }  # fmt: skip
    if option := next((name for name, value in given.items() if value is not None), None):
        raise UsageError(f"{option}: cannot be combined with --mmproj, which converts the encoder only")


def check_scale_pairs(options: ImportanceOptions, effort: str, prunes_layers: bool) -> None:
    """Raise UsageError if --scale-pairs lacks the data that it needs, or is combined with what it cannot be."""
    if not options.scale_pairs:
        return
    if options.calibrate is None and options.imatrix is None:
        raise UsageError("--scale-pairs: requires --imatrix FILE or --calibrate FILE")
    if effort == "fast":
        raise UsageError("--scale-pairs: cannot be combined with --effort fast")
    if prunes_layers:
        raise UsageError("--scale-pairs: cannot be combined with --prune-layers; prune the model first with type COPY")


def parse_positionals(words: Sequence[str]) -> Positionals:
    """Parse [OUT] TYPE [THREADS]. The first word is OUT unless it is a type."""
    if not words:
        raise UsageError(f"TYPE: missing; choose one of {TYPES}")
    named = [find_recipe(word) for word in words[:2]]
    if named[0]:
        out, recipe, rest = None, named[0], words[1:]
    elif len(named) > 1 and named[1]:
        out, recipe, rest = Path(words[0]), named[1], words[2:]
    else:
        wrong = words[len(named) - 1]
        near = did_you_mean(wrong, [*RECIPES, COPY])
        raise UsageError(f"TYPE: {wrong}: no such type{near or f'; choose one of {TYPES}'}")
    return Positionals(out, recipe, parse_threads(rest, "SOURCE [OUT] TYPE [THREADS]"))


def parse_positionals_without_type(words: Sequence[str]) -> Positionals:
    """Parse [OUT] [THREADS]. The first word is OUT unless it is a number."""
    out = None if not words or words[0].isdecimal() else Path(words[0])
    rest = words[1 if out else 0 :]
    named = [word for word in words if find_recipe(word) and not word.isdecimal()]
    if named:
        raise UsageError(f"{named[0]}: cannot be combined with a target or a recipe file, which choose the types")
    return Positionals(out, None, parse_threads(rest, "SOURCE [OUT] [THREADS]"))


def parse_threads(rest: Sequence[str], usage: str) -> int | None:
    """Parse the optional argument THREADS."""
    if len(rest) > 1:
        raise UsageError(f"{rest[1]}: too many arguments: {usage}")
    if rest and not (rest[0].isascii() and rest[0].isdigit() and 1 <= int(rest[0]) <= 1024):
        raise UsageError(f"THREADS: must be a number from 1 to 1024, not {rest[0]}: {usage}")
    return int(rest[0]) if rest else None


def parse_target(options: TypeOptions) -> "Target | None":
    """Parse --target-size and --target-bpw. Returns None if neither is given."""
    size, bits = options.target_size, options.target_bpw
    if size is None and bits is None:
        return None
    if size is not None and bits is not None:
        raise UsageError("--target-size and --target-bpw: cannot be combined")
    if options.pure:
        raise UsageError("--pure: cannot be combined with a target")

    from localinfer.quantization.budget import parse_bits, parse_size

    found = parse_option("--target-size", parse_size, size)
    return found or parse_option("--target-bpw", parse_bits, bits)


def parse_recipe_file(options: TypeOptions) -> "RecipeFile | None":
    """Read the file of --recipe. Returns None without it."""
    if options.recipe is None:
        return None
    given = {
        "--target-size": options.target_size, "--target-bpw": options.target_bpw, "--pure": options.pure or None,
        "--output-tensor-type": options.output_tensor_type, "--token-embedding-type": options.token_embedding_type,
        "--tensor-type": options.tensor_type, "--tensor-type-file": options.tensor_type_file,
        "--leave-output-tensor": options.leave_output_tensor or None,
    }  # fmt: skip
    if option := next((name for name, value in given.items() if value is not None), None):
        raise UsageError(f"{option}: cannot be combined with --recipe, whose file chooses the types")

    from localinfer.quantization.recipe_file import read_recipe

    return read_recipe(options.recipe)


def parse_lab(options: TypeOptions) -> "Lab | None":
    """Read the file of --lab. Returns None without it."""
    if options.lab is None:
        return None
    if options.target_size is None and options.target_bpw is None:
        raise UsageError("--lab: requires --target-size or --target-bpw; or use it as --recipe")

    from localinfer.lab.lab_file import read_lab

    return read_lab(options.lab)


def parse_calibration(options: ImportanceOptions, output: OutputOptions, prunes_layers: bool) -> Calibration | None:
    """Parse --calibrate and --calibrate-chunks. Raises UsageError if they are combined with options of
    CALIBRATION_CONFLICTS.
    """
    if options.calibrate is None:
        if options.calibrate_chunks is not None:
            raise UsageError("--calibrate-chunks: requires --calibrate FILE")
        return None
    given = {
        "--imatrix": options.imatrix,
        "--keep-split": output.keep_split,
        "--prune-layers": prunes_layers,
        "--report": output.report,
        "--effort": options.effort not in (None, "max"),
    }
    for option, problem in CALIBRATION_CONFLICTS.items():
        if given[option]:
            raise UsageError(f"{option}: {problem}")
    return Calibration(options.calibrate, options.calibrate_chunks or DEFAULT_CHUNKS)


def parse_effort(effort: str | None, calibration: Calibration | None) -> str:
    """Validate --effort, or return its default."""
    effort = effort or ("max" if calibration else "normal")
    if effort not in EFFORTS:
        raise UsageError(f"--effort: must be one of {', '.join(EFFORTS)}, not {effort}")
    return effort


def parse_type_overrides(options: TypeOptions) -> TypeOverrides:
    """Parse the options that override the types of the recipe. Patterns of the file follow those of --tensor-type."""
    from localinfer.quantization.plan import parse_pattern, parse_type

    patterns = [*(options.tensor_type or ()), *read_patterns("--tensor-type-file", options.tensor_type_file)]
    return TypeOverrides(
        pure=options.pure,
        leave_output=options.leave_output_tensor,
        output=parse_option("--output-tensor-type", parse_type, options.output_tensor_type),
        token_embedding=parse_option("--token-embedding-type", parse_type, options.token_embedding_type),
        patterns=tuple(parse_options("--tensor-type", parse_pattern, patterns)),
    )


def parse_metadata(texts: Sequence[str]) -> "dict[str, Field]":
    """Parse --override-kv: metadata that replaces that of the source."""
    from localinfer.gguf.source import Field
    from localinfer.options.metadata_values import parse_override

    return {key: Field.typed(value) for key, value in parse_options("--override-kv", parse_override, texts)}


def parse_layers(layers: str | None, text: str | None) -> tuple[tuple[int, ...], LayerSearch | None]:
    """Parse --prune-layers and --prune-text: the numbers of the layers to remove, or how they are chosen."""
    from localinfer.quantization.prune import parse_count, parse_layers

    is_search = layers is not None and layers.startswith(AUTO)
    if is_search and text is None:
        raise UsageError(f"--prune-layers: {AUTO}COUNT requires --prune-text FILE")
    if text is not None and not is_search:
        raise UsageError(f"--prune-text: requires --prune-layers {AUTO}COUNT")
    if layers is None or text is None:
        return parse_option("--prune-layers", parse_layers, layers) or (), None
    return (), LayerSearch(parse_option("--prune-layers", parse_count, layers.removeprefix(AUTO)) or 0, text)


def parse_adapters(options: SourceOptions) -> tuple[tuple[Path, float], ...]:
    """Parse --lora and --lora-scaled: adapters and their scales."""
    adapters = [(Path(name), 1.0) for text in options.lora or () for name in text.split(",")]
    for text in options.lora_scaled or ():
        for item in text.split(","):
            name, _, number = item.rpartition(":")
            try:
                scale = float(number)
            except ValueError:
                scale = math.nan
            if not name or not math.isfinite(scale):
                raise UsageError(f"--lora-scaled: must be FILE:SCALE, such as adapter.gguf:0.5, not {item}")
            adapters.append((Path(name), scale))
    return tuple(adapters)


def parse_option(option: str, parse: Callable[[str], Value], text: str | None) -> Value | None:
    return None if text is None else parse_options(option, parse, [text])[0]


def parse_options(option: str, parse: Callable[[str], Value], texts: Sequence[str]) -> list[Value]:
    try:
        return [parse(text) for text in texts]
    except ValueError as problem:
        raise UsageError(f"{option}: {problem}") from None


def read_patterns(option: str, path: Path | None) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split() if path else []
    except OSError as error:
        raise UsageError(f"{option}: {path}: {error.strerror}") from None
    except ValueError:
        raise UsageError(f"{option}: {path}: is not valid UTF-8") from None

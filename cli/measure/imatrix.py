"""The command `localinfer imatrix`: compute an importance matrix from calibration data."""

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments.flags import with_options
from cli.files.output_files import writable_path
from cli.files.text_input import read_text_files
from cli.measure.chunk_progress import ChunkProgress
from cli.measure.perplexity import CHUNK_DEFAULTS, UNUSED_OPTIONS, ChunksOption
from cli.models.loading import open_engine
from cli.terminal import screen
from cli.terminal.tables import table
from localinfer.errors import UsageError
from localinfer.options import CHUNK_SIZE, Layer

if TYPE_CHECKING:
    from localinfer.evaluation.imatrix_statistics import Statistics
    from localinfer.gguf.imatrix_file import Imatrix

FORMATS = ("gguf", "dat")
HEADINGS = ("", "sum", "min", "max", "mean", "deviation", "active", "columns", "entropy", "ZD", "cos prev")


@dataclass(frozen=True, kw_only=True)
class CollectionOptions:
    """What is computed from the calibration data."""

    files: Annotated[
        list[str] | None,
        typer.Option("-f", "--file", metavar="FILE", help="Calibration data, a UTF-8 text file; may be repeated."),
    ] = None
    max_chunks: ChunksOption = 0
    from_chunk: Annotated[
        int, typer.Option("--from-chunk", metavar="N", min=0, help="Number of chunks to skip at the start.")
    ] = 0
    process_output: Annotated[bool, typer.Option("--process-output", help="Include the output layer.")] = False
    covariance: Annotated[
        bool, typer.Option("--covariance", help="Also collect covariances of the inputs; files are large.")
    ] = False
    parse_special: Annotated[
        bool, typer.Option("--parse-special", help="Parse control tokens such as <|im_end|>.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """The output file."""

    output: Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="Output file.")] = "imatrix.gguf"
    output_format: Annotated[
        str | None,
        typer.Option("--output-format", metavar="gguf|dat", help="Output format [default: from the file extension]."),
    ] = None


@with_options("model", without=UNUSED_OPTIONS, defaults=CHUNK_DEFAULTS)
def imatrix_command(
    given: Layer,
    *,
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="Path of a GGUF file, or a model name; preferably not quantized."),
    ] = None,
    collection: CollectionOptions,
    output: OutputOptions,
    in_files: Annotated[
        list[str] | None,
        typer.Option("--in-file", metavar="FILE", help="Merge an existing importance matrix; may be repeated."),
    ] = None,
    show_statistics: Annotated[
        bool, typer.Option("--show-statistics", help="Show statistics of --in-file and exit.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the statistics as one JSON object.")] = False,
) -> None:
    """Compute an importance matrix for `quantize --imatrix`.

    As in llama-imatrix, the model evaluates the text in chunks of --ctx-size tokens (default 512), and the squares of
    the inputs of each matrix are summed, separately for each expert of a mixture-of-experts layer. Experts without
    tokens are reported. The file formats are compatible with llama.cpp. Without MODEL and --file, the files of
    --in-file are merged.

    \b
    Examples:
      localinfer imatrix model-f16.gguf -f calibration.txt -o imatrix.gguf
      localinfer imatrix model-f16.gguf -f calibration.txt --chunks 100 --covariance
      localinfer imatrix --in-file a.gguf --in-file b.dat -o both.gguf
      localinfer imatrix --in-file imatrix.gguf --show-statistics
    """
    existing = in_files or []
    if show_statistics:
        show_file(existing, as_json)
        return
    if (model is None) != (not collection.files) or (model is None and not existing):
        raise UsageError("requires MODEL and --file FILE, or --in-file FILE to merge, or both")
    legacy = is_legacy_format(output.output, output.output_format, collection.covariance)
    path, status = writable_path("--output", output.output, inputs=collection.files or ()), screen.Status()

    from localinfer.evaluation.imatrix import merge, unused_experts
    from localinfer.gguf import imatrix_file

    matrices = [imatrix_file.read_imatrix(Path(name)) for name in existing]
    if model is not None:
        matrices.append(compute(model, given, collection, status))
    with status.busy("writing"):
        found = merge(matrices, default_chunk_size(given))
        imatrix_file.write_imatrix(path, found, legacy=legacy, replace=True)
    for block, experts in unused_experts(found).items():
        screen.warn(
            f"{block}: no tokens were routed to {numbered_list('expert', experts)}; their columns have equal importance"
        )
    size = f"{found.chunk_count} chunks of {found.chunk_size} tokens"
    screen.note(f"{output.output}: {len(found.entries)} matrices, {size}")


def compute(model: str, given: Layer, options: CollectionOptions, status: screen.Status) -> "Imatrix":
    """Compute the importance matrix of a model on the calibration data."""
    from localinfer.file_operations import CalibrationData, collect_imatrix

    files = options.files or []
    calibration = CalibrationData(
        read_text_files(files), ", ".join(files), options.from_chunk, options.max_chunks, options.parse_special
    )
    with closing(open_engine(model, given, CHUNK_DEFAULTS, status)) as engine:
        return collect_imatrix(
            engine,
            calibration,
            covariance=options.covariance,
            output_layer=options.process_output,
            progress=ChunkProgress(status),
        )


def numbered_list(what: str, numbers: Sequence[int], most: int = 20) -> str:
    """Return text such as "experts 1, 2 and 5 others"."""
    more = f" and {len(numbers) - most} others" if len(numbers) > most else ""
    return f"{what}{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers[:most]))}{more}"


def is_legacy_format(output: str, output_format: str | None, covariance: bool) -> bool:
    """Return whether to write the .dat format. Raises UsageError for invalid combinations."""
    if output_format not in (None, *FORMATS):
        raise UsageError(f"--output-format: must be {' or '.join(FORMATS)}, not {output_format}")
    legacy = output.endswith(".dat") if output_format is None else output_format == "dat"
    if legacy and covariance:
        raise UsageError("--covariance: not supported by the .dat format")
    return legacy


def default_chunk_size(given: Layer) -> int:
    """Return the chunk size in tokens to assume for files that do not record it."""
    size = given.get("ctx_size")
    return size if isinstance(size, int) and size else CHUNK_SIZE


# ---- statistics --------------------------------------------------------------------------------------------


def show_file(files: Sequence[str], as_json: bool) -> None:
    if len(files) != 1:
        raise UsageError("--show-statistics: takes one --in-file FILE")

    from localinfer.evaluation.imatrix_statistics import by_layer, by_matrix
    from localinfer.gguf.imatrix_file import read_imatrix

    matrix = read_imatrix(Path(files[0]))
    matrices, layers = by_matrix(matrix), by_layer(matrix)
    if as_json:
        found = {"matrices": [*map(asdict, matrices)], "layers": [*map(asdict, layers)]}
        screen.write(json.dumps(found) + "\n")
        return
    lines = table("by matrix: mean squares of the inputs", "<" + 10 * ">", [HEADINGS, *map(statistics_row, matrices)])
    screen.write("\n".join(lines).lstrip("\n") + "\n")
    screen.write("\n".join(table("by layer", "<" + 10 * ">", [HEADINGS, *map(statistics_row, layers)])) + "\n")


def statistics_row(found: "Statistics") -> Sequence[str]:
    similarity = "" if found.similarity is None else f"{found.similarity:.4f}"
    return (
        screen.one_line(found.name), f"{found.total:.2f}", f"{found.least:.4f}", f"{found.most:.4f}",
        f"{found.mean:.4f}", f"{found.deviation:.4f}", f"{100 * found.active:.2f} %", str(found.n),
        f"{found.entropy:.4f}", f"{100 * found.outlier_fraction:.2f} %", similarity,
    )  # fmt: skip

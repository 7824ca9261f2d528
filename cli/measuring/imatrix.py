"""`localinfer imatrix`: which columns of a model's weights matter, for `quantize --imatrix`."""

import json
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli import guard, screen
from cli.files import promised
from cli.flags import with_options
from cli.loading import open_engine
from cli.measuring.perplexity import CHUNK, N_CTX, RING, MostOption, cut_for
from cli.tables import table
from cli.texts import from_file
from localinfer.errors import UsageError
from localinfer.options import Layer

if TYPE_CHECKING:
    from localinfer.judging.chunks import Chunks
    from localinfer.judging.imatrix import Collector
    from localinfer.judging.imatrix_statistics import Statistics

FORMATS = ("gguf", "dat")
HEADINGS = ("", "sum", "min", "max", "mean", "deviation", "active", "columns", "entropy", "ZD", "like before")


@with_options("model", without=RING, defaults=CHUNK)
def imatrix_command(
    given: Layer,
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="Path of a GGUF file, or a name; best not quantized itself.")
    ] = None,
    file: Annotated[str | None, typer.Option("-f", "--file", metavar="FILE", help="The text, in UTF-8.")] = None,
    output: Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="Write there.")] = "imatrix.gguf",
    output_format: Annotated[
        str | None,
        typer.Option("--output-format", metavar="gguf|dat", help="The form [default: dat for names that end so]."),
    ] = None,
    most: MostOption = 0,
    process_output: Annotated[bool, typer.Option("--process-output", help="Of the output layer, too.")] = False,
    covariance: Annotated[
        bool, typer.Option("--covariance", help="And the products of all pairs of inputs: large files.")
    ] = False,
    parse_special: Annotated[
        bool, typer.Option("--parse-special", help="Texts such as <|im_end|> are control tokens.")
    ] = False,
    in_files: Annotated[
        list[str] | None,
        typer.Option("--in-file", metavar="FILE", help="Add the sums of this file; repeat it for more."),
    ] = None,
    show_statistics: Annotated[
        bool, typer.Option("--show-statistics", help="Only show what is in the --in-file.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Statistics as one JSON object.")] = False,
) -> None:
    """Measure which columns of weights matter, for `quantize --imatrix`.

    The model reads the text in chunks of --ctx-size tokens, 512 unless said otherwise, and the squares of what each
    matrix is multiplied with are summed up, as llama-imatrix does; of mixtures, for each expert, and those that saw no
    token are named. Files of either program serve the other. Without MODEL and --file, the sums of --in-file are put
    together.

    \b
      localinfer imatrix model-f16.gguf -f calibration.txt -o imatrix.gguf
      localinfer imatrix model-f16.gguf -f calibration.txt --chunks 100 --covariance
      localinfer imatrix --in-file a.gguf --in-file b.dat -o both.gguf
      localinfer imatrix --in-file imatrix.gguf --show-statistics
    """
    earlier = in_files or []
    if show_statistics:
        show(earlier, as_json)
        return
    if (model is None) != (file is None) or (model is None and not earlier):
        raise UsageError("give MODEL and --file FILE, or --in-file FILE to put together, or all of them")
    legacy = in_legacy_form(output, output_format, covariance)
    path, status = promised("--output", output), screen.Status()

    from localinfer.files import imatrix_file
    from localinfer.judging.imatrix import Collector, merged, unseen

    matrices = [imatrix_file.read_imatrix(Path(name)) for name in earlier]
    if model is not None and file is not None:
        text = from_file(file)
        with closing(open_engine(model, given, CHUNK, status)) as engine:
            guard.against_shrinking(screen.one_line(str(engine.file.path)))
            chunks = cut_for(engine, text, most, parse_special=parse_special)
            collector = Collector(engine, head=process_output, covariance=covariance)
            read(collector, chunks, status)
            matrices.append(collector.matrix(file))
    with status.busy("writing"):
        found = merged(matrices, size_of_chunks(given))
        imatrix_file.write_imatrix(path, found, legacy=legacy, replace=True)
    for block, experts in unseen(found).items():
        screen.warn(f"{block}: no token was seen by {listed('expert', experts)}: all of their columns count alike")
    screen.note(f"{output}: {len(found.entries)} matrices, {found.chunk_count} chunks of {found.chunk_size} tokens")


def listed(what: str, numbers: Sequence[int], most: int = 20) -> str:
    """Some things by their numbers."""
    more = f" and {len(numbers) - most} others" if len(numbers) > most else ""
    return f"{what}{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers[:most]))}{more}"


def in_legacy_form(output: str, output_format: str | None, covariance: bool) -> bool:
    """Whether to write a .dat. UsageError for what cannot be."""
    if output_format not in (None, *FORMATS):
        raise UsageError(f"--output-format: must be {' or '.join(FORMATS)}, not {output_format}")
    legacy = output.endswith(".dat") if output_format is None else output_format == "dat"
    if legacy and covariance:
        raise UsageError("--covariance: files in the form of .dat cannot hold it")
    return legacy


def size_of_chunks(given: Layer) -> int:
    """What files that do not say it are taken to have, in tokens."""
    size = given.get("ctx_size")
    return size if isinstance(size, int) and size else N_CTX


def read(collector: "Collector", chunks: "Chunks", status: screen.Status) -> None:
    """Have the model read all chunks."""
    began = time.monotonic()
    for done in collector.read(chunks):
        left = screen.time_left(done, len(chunks), time.monotonic() - began)
        status.show(f"{done} of {len(chunks)} chunks, {left}")
    status.erase()


# ---- statistics --------------------------------------------------------------------------------------------


def show(files: Sequence[str], as_json: bool) -> None:
    if len(files) != 1:
        raise UsageError("--show-statistics: takes one --in-file FILE")

    from localinfer.files.imatrix_file import read_imatrix
    from localinfer.judging.imatrix_statistics import by_layer, by_matrix

    matrix = read_imatrix(Path(files[0]))
    matrices, layers = by_matrix(matrix), by_layer(matrix)
    if as_json:
        found = {"matrices": [*map(asdict, matrices)], "layers": [*map(asdict, layers)]}
        screen.write(json.dumps(found) + "\n")
        return
    lines = table("by matrix: mean squares of the inputs", "<" + 10 * ">", [HEADINGS, *map(cells, matrices)])
    screen.write("\n".join(lines).lstrip("\n") + "\n")
    screen.write("\n".join(table("by layer", "<" + 10 * ">", [HEADINGS, *map(cells, layers)])) + "\n")


def cells(found: "Statistics") -> Sequence[str]:
    similarity = "" if found.similarity is None else f"{found.similarity:.4f}"
    return (
        screen.one_line(found.name), f"{found.total:.2f}", f"{found.least:.4f}", f"{found.most:.4f}",
        f"{found.mean:.4f}", f"{found.deviation:.4f}", f"{100 * found.active:.2f} %", str(found.n),
        f"{found.entropy:.4f}", f"{100 * found.outstanding:.2f} %", similarity,
    )  # fmt: skip

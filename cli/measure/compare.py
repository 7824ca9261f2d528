"""The command `localinfer compare`: KL divergence between two models, such as a model and its quantization."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.arguments.flags import JsonOption, with_options
from cli.files.text_input import read_text_files
from cli.measure.chunk_progress import ChunkProgress
from cli.measure.perplexity import CHUNK_DEFAULTS, UNUSED_OPTIONS, ChunksOption, TextOption
from cli.models import sigbus_handler
from cli.models.loading import open_engine
from cli.terminal import screen
from cli.terminal.tables import table
from localinfer.options import Layer

if TYPE_CHECKING:
    from localinfer.evaluation.compare import Distribution, Summary
    from localinfer.evaluation.perplexity import Mean


@with_options("model", without=UNUSED_OPTIONS, defaults=CHUNK_DEFAULTS)
def compare_command(
    base: Annotated[
        str, typer.Argument(metavar="BASE", help="The reference model: path of a GGUF file, or a model name.")
    ],
    other: Annotated[str, typer.Argument(metavar="MODEL", help="The model to compare with it.")],
    given: Layer,
    files: TextOption,
    max_chunks: ChunksOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Compare two models by KL divergence on a text.

    Both models evaluate the text in chunks of --ctx-size tokens (default 512). The second half of each chunk is scored.
    The figures are those of llama-perplexity --kl-divergence, without a file of logits: KL divergence of MODEL from
    BASE in nats per token, perplexities, and top-1 agreement.

    \b
    Examples:
      localinfer compare model-f16.gguf model-q4_k_m.gguf -f wiki.test.raw
      localinfer compare model-f16.gguf model-q4_k_m.gguf -f text.txt --chunks 20 --json
    """
    from localinfer.file_operations import compare_engines

    text, status = read_text_files(files), screen.Status()
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(closing(open_engine(name, given, CHUNK_DEFAULTS, status))) for name in (base, other)
        )
        sigbus_handler.install(screen.one_line(f"{first.file.path} or {second.file.path}"))
        progress = ChunkProgress(status, "KL", digits=5)
        found = compare_engines(first, second, text, max_chunks=max_chunks, progress=progress)
    if as_json:
        size = {"chunks": progress.n_chunks, "n_ctx": first.n_ctx}
        screen.write(json.dumps({"base": base, "model": other, **size, **as_object(found)}) + "\n")
    else:
        screen.write("\n".join(as_text(found)).lstrip("\n") + "\n")


# ---- text output -------------------------------------------------------------------------------------------


def as_text(found: "Summary") -> Iterator[str]:
    perplexities = [
        ("of BASE", format_mean(found.perplexity_base, 4)),
        ("of MODEL", format_mean(found.perplexity, 4)),
        ("difference", format_mean(found.difference, 4)),
        ("ratio", format_mean(found.ratio, 5)),
        ("ln of the ratio", format_mean(found.log_ratio, 5)),
        ("correlation of ln p", f"{100 * found.correlation:.2f} %"),
    ]
    yield from table("perplexity", "<>", perplexities)
    yield from table("KL divergence, nats", "<>", spread_rows(found.divergence, 6))
    changes = [*spread_rows(found.probability, 3, 100, " %"), ("RMS", format_mean(found.probability_rms, 3, 100, " %"))]
    yield from table("change of the probability of the correct token", "<>", changes)
    yield from table("top-1 agreement", "<>", [("same top token", format_mean(found.same_top, 3, 100, " %"))])


def format_mean(mean: "Mean", digits: int, factor: float = 1.0, unit: str = "") -> str:
    return f"{factor * mean.value:.{digits}f} +/- {factor * mean.error:.{digits}f}{unit}"


def spread_rows(spread: "Distribution", digits: int, factor: float = 1.0, unit: str = "") -> Iterator[tuple[str, str]]:
    names = {1.0: "maximum", 0.5: "median", 0.0: "minimum"}
    yield "mean", format_mean(spread.mean, digits, factor, unit)
    for fraction, value in spread.quantiles.items():
        yield names.get(fraction, f"{100 * fraction:g} %"), f"{factor * value:.{digits}f}{unit}"


# ---- JSON output -------------------------------------------------------------------------------------------


def as_object(found: "Summary") -> dict[str, Any]:
    """Return the summary as a JSON object. Quantiles are a list of pairs of fraction and value."""
    figures = asdict(found)
    for name in ("divergence", "probability"):
        figures[name]["quantiles"] = list(figures[name]["quantiles"].items())
    return figures

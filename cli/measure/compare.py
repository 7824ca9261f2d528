"""The command `localinfer compare`: KL divergence between two models, such as a model and its quantization."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import screen, sigbus_handler
from cli.flags import with_options
from cli.loading import open_engine
from cli.measure.perplexity import CHUNK_DEFAULTS, UNUSED_OPTIONS, ChunksOption, TextOption, split_text
from cli.tables import table
from cli.text_input import read_text_file
from localinfer.options import Layer

if TYPE_CHECKING:
    from localinfer.evaluation.chunks import Chunks
    from localinfer.evaluation.compare import Distribution, Summary
    from localinfer.evaluation.perplexity import Mean
    from localinfer.runtime.engine import Engine


@with_options("model", without=UNUSED_OPTIONS, defaults=CHUNK_DEFAULTS)
def compare_command(
    base: Annotated[
        str, typer.Argument(metavar="BASE", help="The reference model: path of a GGUF file, or a model name.")
    ],
    other: Annotated[str, typer.Argument(metavar="MODEL", help="The model to compare with it.")],
    given: Layer,
    file: TextOption,
    most: ChunksOption = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare two models by KL divergence on a text.

    Both models evaluate the text in chunks of --ctx-size tokens (default 512). The second half of each chunk is scored.
    The figures are those of llama-perplexity --kl-divergence, without a file of logits: KL divergence of MODEL from
    BASE in nats per token, perplexities, and top-1 agreement.

    \b
      localinfer compare model-f16.gguf model-q4_k_m.gguf -f wiki.test.raw
      localinfer compare model-f16.gguf model-q4_k_m.gguf -f text.txt --chunks 20 --json
    """
    text, status = read_text_file(file), screen.Status()
    with ExitStack() as opened:
        engines = [
            opened.enter_context(closing(open_engine(name, given, CHUNK_DEFAULTS, status))) for name in (base, other)
        ]
        sigbus_handler.install(screen.one_line(" or ".join(str(engine.file.path) for engine in engines)))
        chunks = split_text(engines[0], text, most)
        found = measure(engines[0], engines[1], chunks, status)
    if as_json:
        screen.write(json.dumps(as_object(found, base, other, chunks)) + "\n")
    else:
        screen.write("\n".join(as_text(found)).lstrip("\n") + "\n")


def measure(base: "Engine", other: "Engine", chunks: "Chunks", status: screen.Status) -> "Summary":
    """Compare the models and return the summary, with progress on the status line."""
    from localinfer.evaluation.compare import compare, summarize
    from localinfer.evaluation.perplexity import Mean

    began = time.monotonic()
    for done, scores in enumerate(compare(base, other, chunks), 1):
        left = screen.time_left(done, len(chunks), time.monotonic() - began)
        divergence = Mean.of(scores.divergence)
        shown = f"KL = {divergence.value:.5f} +/- {divergence.error:.5f}"
        status.show(f"{shown} after {done} of {len(chunks)} chunks, {left}")
    status.erase()
    return summarize(scores)


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
    for part, value in spread.quantiles.items():
        yield names.get(part, f"{100 * part:g} %"), f"{factor * value:.{digits}f}{unit}"


# ---- JSON output -------------------------------------------------------------------------------------------


def as_object(found: "Summary", base: str, other: str, chunks: "Chunks") -> dict[str, Any]:
    """Return the summary as a JSON object. Quantiles are a list of pairs of fraction and value."""
    figures = asdict(found)
    for name in ("divergence", "probability"):
        figures[name]["quantiles"] = list(figures[name]["quantiles"].items())
    return {"base": base, "model": other, "chunks": len(chunks), "n_ctx": chunks.shape[1], **figures}

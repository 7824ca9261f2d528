"""`localinfer compare`: how far a model, such as a quantized one, is from another on a text."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import guard, screen
from cli.flags import with_options
from cli.loading import open_engine
from cli.measuring.perplexity import CHUNK, RING, MostOption, TextOption, cut_for
from cli.tables import table
from cli.texts import from_file
from localinfer.options import Layer

if TYPE_CHECKING:
    from localinfer.engine.engine import Engine
    from localinfer.judging.chunks import Chunks
    from localinfer.judging.compare import Spread, Summary
    from localinfer.judging.perplexity import Mean


@with_options("model", without=RING, defaults=CHUNK)
def compare_command(
    base: Annotated[
        str, typer.Argument(metavar="BASE", help="The model that is right: a path of a GGUF file, or a name.")
    ],
    other: Annotated[str, typer.Argument(metavar="MODEL", help="The model that departs from it.")],
    given: Layer,
    file: TextOption,
    most: MostOption = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Write one JSON object.")] = False,
) -> None:
    """Measure how far a model is from another on a text.

    Both read the text side by side, in chunks of --ctx-size tokens, 512 unless said otherwise; the second half of each
    is scored. The figures are those of llama-perplexity --kl-divergence, without a file of logits. The Kullback-Leibler
    divergence says how much of what BASE expects MODEL has lost, in nats a token.

    \b
      localinfer compare model-f16.gguf model-q4_k_m.gguf -f wiki.test.raw
      localinfer compare model-f16.gguf model-q4_k_m.gguf -f text.txt --chunks 20 --json
    """
    text, status = from_file(file), screen.Status()
    with ExitStack() as opened:
        engines = [opened.enter_context(closing(open_engine(name, given, CHUNK, status))) for name in (base, other)]
        guard.against_shrinking(screen.one_line(" or ".join(str(engine.file.path) for engine in engines)))
        chunks = cut_for(engines[0], text, most)
        found = measured(engines[0], engines[1], chunks, status)
    if as_json:
        screen.write(json.dumps(as_object(found, base, other, chunks)) + "\n")
    else:
        screen.write("\n".join(as_text(found)).lstrip("\n") + "\n")


def measured(base: "Engine", other: "Engine", chunks: "Chunks", status: screen.Status) -> "Summary":
    """What there is to tell in the end; the divergence so far is shown on the way."""
    from localinfer.judging.compare import compare, summary
    from localinfer.judging.perplexity import Mean

    began = time.monotonic()
    for done, scores in enumerate(compare(base, other, chunks), 1):
        left = screen.time_left(done, len(chunks), time.monotonic() - began)
        divergence = Mean.of(scores.divergence)
        shown = f"KL = {divergence.value:.5f} +/- {divergence.error:.5f}"
        status.show(f"{shown} after {done} of {len(chunks)} chunks, {left}")
    status.erase()
    return summary(scores)


# ---- for readers -------------------------------------------------------------------------------------------


def as_text(found: "Summary") -> Iterator[str]:
    perplexities = [
        ("of BASE", of_mean(found.perplexity_base, 4)),
        ("of MODEL", of_mean(found.perplexity, 4)),
        ("difference", of_mean(found.difference, 4)),
        ("ratio", of_mean(found.ratio, 5)),
        ("ln of the ratio", of_mean(found.log_ratio, 5)),
        ("correlation of ln p", f"{100 * found.correlation:.2f} %"),
    ]
    yield from table("perplexity", "<>", perplexities)
    yield from table("KL divergence, nats", "<>", of_spread(found.divergence, 6))
    changes = [*of_spread(found.probability, 3, 100, " %"), ("RMS", of_mean(found.probability_rms, 3, 100, " %"))]
    yield from table("change of the probability of the right token", "<>", changes)
    yield from table("most probable token", "<>", [("the same", of_mean(found.same_top, 3, 100, " %"))])


def of_mean(mean: "Mean", digits: int, factor: float = 1.0, unit: str = "") -> str:
    return f"{factor * mean.value:.{digits}f} +/- {factor * mean.error:.{digits}f}{unit}"


def of_spread(spread: "Spread", digits: int, factor: float = 1.0, unit: str = "") -> Iterator[tuple[str, str]]:
    names = {1.0: "maximum", 0.5: "median", 0.0: "minimum"}
    yield "mean", of_mean(spread.mean, digits, factor, unit)
    for part, value in spread.quantiles.items():
        yield names.get(part, f"{100 * part:g} %"), f"{factor * value:.{digits}f}{unit}"


# ---- for machines ------------------------------------------------------------------------------------------


def as_object(found: "Summary", base: str, other: str, chunks: "Chunks") -> dict[str, Any]:
    """Quantiles are a list of pairs: a part of all tokens, and the value that it lies below."""
    figures = asdict(found)
    for name in ("divergence", "probability"):
        figures[name]["quantiles"] = list(figures[name]["quantiles"].items())
    return {"base": base, "model": other, "chunks": len(chunks), "n_ctx": chunks.shape[1], **figures}

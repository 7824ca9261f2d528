"""`localinfer perplexity`: how much a text surprises a model."""

import json
import time
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from cli import guard, screen
from cli.flags import ModelArgument, with_options
from cli.loading import open_engine
from cli.texts import from_file
from localinfer.options import Layer

if TYPE_CHECKING:
    from localinfer.engine.engine import Engine
    from localinfer.judging.chunks import Chunks

N_CTX = 512  # llama-perplexity's chunks, and those of most published figures
CHUNK: Layer = {"ctx_size": N_CTX}
RING = ("ctx_policy", "keep")  # options without a meaning here: no chunk is longer than the context
TextOption = Annotated[str, typer.Option("-f", "--file", metavar="FILE", help="The text, in UTF-8.")]
MostOption = Annotated[int, typer.Option("--chunks", metavar="N", min=0, help="Read at most so many chunks (0: all).")]


@with_options("model", without=RING, defaults=CHUNK)
def perplexity_command(
    model: ModelArgument,
    given: Layer,
    file: TextOption,
    most: MostOption = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Write one JSON object.")] = False,
) -> None:
    """Measure how much a text surprises a model, as llama-perplexity does.

    The text is cut into chunks of --ctx-size tokens, 512 unless said otherwise. Of each the second half is scored; the
    result is exp of the mean negative log-likelihood of its tokens, with its standard error.

    \b
      localinfer perplexity smollm2 -f wiki.test.raw
      localinfer perplexity model.gguf -f text.txt -c 2048 --chunks 20 --precision high --json
    """
    text, status = from_file(file), screen.Status()
    with closing(open_engine(model, given, CHUNK, status)) as engine:
        guard.against_shrinking(screen.one_line(str(engine.file.path)))
        chunks = cut_for(engine, text, most)
        value, error = measured(engine, chunks, status)
    if as_json:
        found = {"perplexity": value, "error": error, "chunks": len(chunks), "n_ctx": chunks.shape[1]}
        screen.write(json.dumps(found) + "\n")
    else:
        screen.write(f"PPL = {value:.4f} +/- {error:.5f} ({len(chunks)} chunks of {chunks.shape[1]} tokens)\n")


def cut_for(engine: "Engine", text: str, most: int, *, parse_special: bool = False) -> "Chunks":
    """The text in chunks that fill the engine's context."""
    from localinfer import tokenizer
    from localinfer.judging import chunks

    found = tokenizer.from_gguf(engine.file)
    return chunks.cut(found, text, engine.n_ctx, most=most, parse_special=parse_special)


def measured(engine: "Engine", chunks: "Chunks", status: screen.Status) -> tuple[float, float]:
    """The perplexity and its error; the estimate so far is shown on the way."""
    from localinfer.judging.perplexity import perplexity

    began = time.monotonic()
    for done, estimate in enumerate(perplexity(engine, chunks), 1):
        left = screen.time_left(done, len(chunks), time.monotonic() - began)
        status.show(f"PPL = {estimate.value:.4f} +/- {estimate.error:.4f} after {done} of {len(chunks)} chunks, {left}")
    status.erase()
    return estimate.value, estimate.error

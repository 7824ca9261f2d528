"""The command `localinfer perplexity`: the perplexity of a model on a text."""

import json
import time
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from cli import screen, sigbus_handler
from cli.flags import ModelArgument, with_options
from cli.loading import open_engine
from cli.text_input import read_text_file
from localinfer.options import Layer

if TYPE_CHECKING:
    from localinfer.evaluation.chunks import Chunks
    from localinfer.runtime.engine import Engine

N_CTX = 512  # the chunk size of llama-perplexity and of most published figures
CHUNK_DEFAULTS: Layer = {"ctx_size": N_CTX}
UNUSED_OPTIONS = ("ctx_policy", "keep")  # no chunk exceeds the context
TextOption = Annotated[str, typer.Option("-f", "--file", metavar="FILE", help="A UTF-8 text file.")]
ChunksOption = Annotated[int, typer.Option("--chunks", metavar="N", min=0, help="Maximum number of chunks (0: all).")]


@with_options("model", without=UNUSED_OPTIONS, defaults=CHUNK_DEFAULTS)
def perplexity_command(
    model: ModelArgument,
    given: Layer,
    file: TextOption,
    most: ChunksOption = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure the perplexity of a model on a text.

    The method is that of llama-perplexity: the text is split into chunks of --ctx-size tokens (default 512), and the
    second half of each chunk is scored. The result is exp of the mean negative log-likelihood, with its standard error.

    \b
      localinfer perplexity smollm2 -f wiki.test.raw
      localinfer perplexity model.gguf -f text.txt -c 2048 --chunks 20 --precision high --json
    """
    text, status = read_text_file(file), screen.Status()
    with closing(open_engine(model, given, CHUNK_DEFAULTS, status)) as engine:
        sigbus_handler.install(screen.one_line(str(engine.file.path)))
        chunks = split_text(engine, text, most)
        value, error = measure(engine, chunks, status)
    if as_json:
        found = {"perplexity": value, "error": error, "chunks": len(chunks), "n_ctx": chunks.shape[1]}
        screen.write(json.dumps(found) + "\n")
    else:
        screen.write(f"PPL = {value:.4f} +/- {error:.5f} ({len(chunks)} chunks of {chunks.shape[1]} tokens)\n")


def split_text(engine: "Engine", text: str, most: int, *, parse_special: bool = False) -> "Chunks":
    """Tokenize the text and split it into chunks of the engine's context length."""
    from localinfer import tokenizer
    from localinfer.evaluation import chunks

    found = tokenizer.from_gguf(engine.file)
    return chunks.split_text(found, text, engine.n_ctx, max_chunks=most, parse_special=parse_special)


def measure(engine: "Engine", chunks: "Chunks", status: screen.Status) -> tuple[float, float]:
    """Return the perplexity and its standard error, with progress on the status line."""
    from localinfer.evaluation.perplexity import perplexity

    began = time.monotonic()
    for done, estimate in enumerate(perplexity(engine, chunks), 1):
        left = screen.time_left(done, len(chunks), time.monotonic() - began)
        status.show(f"PPL = {estimate.value:.4f} +/- {estimate.error:.4f} after {done} of {len(chunks)} chunks, {left}")
    status.erase()
    return estimate.value, estimate.error

"""The command `localinfer perplexity`: the perplexity of a model on a text."""

import json
from contextlib import closing
from typing import Annotated

import typer

from cli.arguments.flags import JsonOption, ModelArgument, with_options
from cli.files.text_input import read_text_files
from cli.measure.chunk_progress import ChunkProgress
from cli.models.loading import open_engine
from cli.terminal import screen
from localinfer.options import CHUNK_SIZE, Layer

CHUNK_DEFAULTS: Layer = {"ctx_size": CHUNK_SIZE, "tune": False}  # only decode steps are tuned
UNUSED_OPTIONS = ("ctx_policy", "keep")  # no chunk exceeds the context
TextOption = Annotated[
    list[str], typer.Option("-f", "--file", metavar="FILE", help="A UTF-8 text file; may be repeated.")
]
ChunksOption = Annotated[int, typer.Option("--chunks", metavar="N", min=0, help="Maximum number of chunks (0: all).")]


@with_options("model", "adapters", without=UNUSED_OPTIONS, defaults=CHUNK_DEFAULTS)
def perplexity_command(
    model: ModelArgument,
    given: Layer,
    files: TextOption,
    max_chunks: ChunksOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Measure the perplexity of a model on a text.

    The method is that of llama-perplexity: the text is split into chunks of --ctx-size tokens (default 512), and the
    second half of each chunk is scored. The result is exp of the mean negative log-likelihood, with its standard error.

    \b
    Examples:
      localinfer perplexity smollm2 -f wiki.test.raw
      localinfer perplexity model.gguf -f text.txt -c 2048 --chunks 20 --precision high --json
    """
    from localinfer.file_operations import measure_perplexity

    text, status = read_text_files(files), screen.Status()
    with closing(open_engine(model, given, CHUNK_DEFAULTS, status)) as engine:
        progress = ChunkProgress(status, "PPL")
        found = measure_perplexity(engine, text, max_chunks=max_chunks, progress=progress)
    n_chunks, n_ctx = progress.n_chunks, engine.n_ctx
    if as_json:
        figures = {"perplexity": found.value, "error": found.error, "chunks": n_chunks, "n_ctx": n_ctx}
        screen.write(json.dumps(figures) + "\n")
    else:
        screen.write(f"PPL = {found.value:.4f} +/- {found.error:.5f} ({n_chunks} chunks of {n_ctx} tokens)\n")

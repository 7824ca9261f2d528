"""The layers that `quantize --prune-layers auto:N` removes."""

from contextlib import closing

from cli.terminal import screen
from localinfer.errors import UsageError
from localinfer.gguf.source import Source
from localinfer.options import CHUNK_SIZE, Options

MAX_CHUNKS = 4  # of the text; more rarely change the choice


def choose_layers(source: Source, text: str, count: int, threads: int, status: screen.Status) -> tuple[int, ...]:
    """Return the layers of a GGUF file whose removal changes its predictions on a text least, and print them.

    Raises UsageError if the text is too short or no layer would be left, and UnsupportedError for models whose layers
    share more than the residual stream.
    """
    from localinfer import tokenizer
    from localinfer.evaluation.layer_removal import remove_layers
    from localinfer.gguf.reader import open_gguf
    from localinfer.runtime.engine import Engine
    from localinfer.tokenizer.chunks import split_text

    file = open_gguf(source.files[0])
    chunks = split_text(
        tokenizer.from_gguf(file), text, CHUNK_SIZE, max_chunks=MAX_CHUNKS, option="--prune-text", hint=""
    )
    options = Options(
        threads=threads, threads_batch=threads, ctx_size=CHUNK_SIZE, batch_size=CHUNK_SIZE, ubatch_size=CHUNK_SIZE,
        tune=False,
    )  # fmt: skip
    chosen: list[int] = []
    with closing(Engine.load(file, options, status)) as engine:
        n_layers = engine.compiled_graph.model_graph.block_count
        if count >= n_layers:
            raise UsageError(f"--prune-layers: the model has {n_layers} layers, and one must remain")
        for layer, divergence in remove_layers(engine, chunks, count, status):
            status.erase()
            screen.note(f"without layer {layer}: KL divergence {divergence.value:.4f} +/- {divergence.error:.4f}")
            chosen.append(layer)
    screen.note(f"chosen: --prune-layers {','.join(map(str, sorted(chosen)))}")
    return tuple(sorted(chosen))

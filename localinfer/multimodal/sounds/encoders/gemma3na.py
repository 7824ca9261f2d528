"""Gemma 3n (Google, 2025): the conformer of `gemma_conformer`. A sound of up to 30 s is 188 rows: one of 160 ms, and
behind its end those of a token of silence."""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from localinfer.graph.ops.buffers import Buffer
from localinfer.kernels.signatures import CUMULATIVE_NORM
from localinfer.multimodal.encoder_graph.encoder_tensors import Floats
from localinfer.multimodal.encoder_graph.row_order import consecutive
from localinfer.multimodal.sounds.arrangement import enclose
from localinfer.multimodal.sounds.encoders.conformer import SQUARE
from localinfer.multimodal.sounds.encoders.gemma_conformer import (
    Attention,
    LayerNames,
    past_rows,
    position_rows,
    subsample,
    transform,
)
from localinfer.multimodal.sounds.framing import TAPS, Framing
from localinfer.multimodal.sounds.gemma_mel import Gemma3nProcessor
from localinfer.multimodal.sounds.sound_builder import SoundBuilder

SoundProcessor = Gemma3nProcessor
ARCHITECTURES = ("gemma3n",)
FRAMING = Framing(halvings=2)
EPSILON, CONVOLUTION_EPSILON = 1e-6, 1e-3  # some files have another number, which is wrong
SPAN = 13  # rows to which a row attends: itself and those before it
REDUCTION = 4  # rows of which the first one is kept
N_ROWS = 188
MAX_TOKENS = 1 << 12  # of sounds, in the table of embeddings; published models have 128
NAMES = LayerNames("ln1", "ln2", "linear_pos", "layer_pre_norm")
arrange = enclose("\n\n<start_of_audio>", "<end_of_audio>\n\n")


def prepare(features: Floats, lengths: list[int]) -> Floats:
    """Return the square of 3 x 3 values that each row of the first convolution reads, (rows, time * band): for every
    second time it and the two after it, and for every second band its neighbours."""
    padded = np.pad(features[: sum(lengths)], ((0, TAPS - 1), (1, 1)))
    return sliding_window_view(padded, SQUARE)[::2, ::2].reshape(-1, TAPS * TAPS)


def build(g: SoundBuilder) -> Buffer:
    """Two convolutions over time and frequency, the layers, every fourth row, and a matrix between norms."""
    g.model.eps = EPSILON

    def factors(blk: str) -> Floats:
        values = g.tensors.values(f"{blk}per_dim_scale", g.heads.key).astype(np.float64)
        softplus: Floats = np.logaddexp(values, 0.0).astype(np.float32)
        return softplus

    x = subsample(g, activated, "a.pre_encode.out", before=0)
    transform(g, x, Attention(past_rows(g, SPAN), position_rows(g), factors), NAMES)
    kept = consecutive((g.graph.batch,))[::REDUCTION]
    seen = g.norm(g.gather(x, kept), "mm.a.soft_emb_norm")
    count = len(kept)
    rows = g.gather(seen, consecutive((count,)), out=g.graph.buffer(x.n, g.rows(count + 1)))
    g.constants.set_rows(rows, count, silence(g))
    projected = g.matmul(rows, "mm.a.input_projection", g.output_length)
    order = np.minimum(consecutive((max(N_ROWS, count),)), count)
    return g.gather(g.norm_groups(projected, projected.n), order)


def activated(g: SoundBuilder, x: Buffer, name: str, bands: int) -> Buffer:
    """Return the activations of a convolution, normalized with those of all times up to each."""
    weight = g.tensors.vector(f"{name}.norm.weight", x.n)
    g.graph.op(
        f"{name}.norm", CUMULATIVE_NORM, x.rows, chunks=(0, 0), weight=weight, size=bands, n=x.n,
        eps=CONVOLUTION_EPSILON, x=x,
    )  # fmt: skip
    return g.gate(x, None, "relu")


def silence(g: SoundBuilder) -> Floats:
    """Return the last embedding of the tokens of sounds, after its norm."""
    name, n = "mm.a.embedding.weight", g.embedding_length
    found = g.f.tensors.get(name)
    count = found.shape[0] if found else 1
    if count > MAX_TOKENS:
        raise g.f.error(f"tensor {name}", f"has {count} rows; at most {MAX_TOKENS} are possible")
    row = g.tensors.values(name, count, n)[-1].astype(np.float64)
    weight = g.tensors.values("mm.a.hard_emb_norm.weight", n)
    normalized: Floats = (row / np.sqrt((row**2).mean() + EPSILON) * weight).astype(np.float32)
    return normalized

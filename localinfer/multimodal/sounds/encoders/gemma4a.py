"""Gemma 4 (Google, 2026): the conformer of `gemma_conformer`, whose products are clipped. 25 rows a second."""

import math

from localinfer.graph.ops.buffers import Buffer
from localinfer.multimodal.encoder_graph.encoder_tensors import Floats
from localinfer.multimodal.encoder_graph.matrices import n_rows_of
from localinfer.multimodal.sounds.arrangement import enclose
from localinfer.multimodal.sounds.encoders.conformer import prepare
from localinfer.multimodal.sounds.encoders.gemma_conformer import (
    Attention,
    LayerNames,
    past_rows,
    position_rows,
    subsample,
    transform,
)
from localinfer.multimodal.sounds.framing import Framing
from localinfer.multimodal.sounds.gemma_mel import Gemma4Processor
from localinfer.multimodal.sounds.sound_builder import SoundBuilder

SoundProcessor = Gemma4Processor
ARCHITECTURES = ("gemma4",)
FRAMING = Framing(halvings=2)
EPSILON = 1e-6  # some files have another number, which is wrong
SPAN = 12  # rows to which a row attends: itself and those before it
K_SCALE = math.log(1 + math.e) / math.log(2)
NAMES = LayerNames("attn_pre_norm", "attn_post_norm", "attn_k_rel", "ln2")
arrange = enclose("<|audio>", "<audio|>")
__all__ = ["ARCHITECTURES", "FRAMING", "SoundProcessor", "arrange", "build", "prepare"]


def build(g: SoundBuilder) -> Buffer:
    """Two convolutions over time and frequency, the layers, two matrices with a norm between them."""
    g.model.eps = EPSILON

    def factors(blk: str) -> Floats:
        return g.tensors.values(f"{blk}per_dim_scale.weight", g.heads.key)

    x = subsample(g, activated, "a.input_projection")
    transform(g, x, Attention(past_rows(g, SPAN), position_rows(g), factors, K_SCALE), NAMES)
    x = g.matmul(x, "a.pre_encode.out", n_rows_of(g, "a.pre_encode.out"))
    return g.matmul(g.norm_groups(x, x.n), "mm.a.input_projection", g.output_length)


def activated(g: SoundBuilder, x: Buffer, name: str, bands: int) -> Buffer:  # noqa: ARG001 (one signature for all)
    """Return the activations of a convolution, after LayerNorm of the channels."""
    return g.gate(g.default_layer_norm(x, f"{name}.norm", EPSILON), None, "relu")

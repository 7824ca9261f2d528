"""MiniCPM (OpenBMB, 2024): as Llama, with scales that depend on width and depth. Early files do not have the scales as
metadata."""

import math

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder


def build(g: Builder[X], pairs: str = "interleaved") -> None:
    """The logits are divided by `logit_scale`, as in granite. Early files need defaults for it. A variant rotates other
    `pairs`."""
    hparams = g.hparams
    spec = DecoderSpec(
        attention=AttentionSpec(g.rope(pairs)),
        embedding_scale=hparams.positive("embedding_scale", 12.0),
        residual_scale=hparams.positive("residual_scale", 1.4 / math.sqrt(g.block_count)),
        logit_scale=1 / hparams.positive("logit_scale", g.embedding_length / 256),
    )
    build_decoder(g, spec)

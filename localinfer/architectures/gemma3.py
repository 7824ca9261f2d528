"""Gemma 3 (Google, 2025): norms before and after each branch, normalized heads, five sliding-window layers per
full-attention layer."""

import math
from dataclasses import replace

from localinfer.architectures.gemma2 import attention_scale
from localinfer.graph.attention import rope_swa, sliding_layers, sliding_window
from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import POST_NORMS, DecoderSpec, build_decoder

BLOCKS_27B = 62  # layers of the 27B model
PATTERN = 6  # every sixth layer has full attention, unless the file specifies otherwise


def build(g: Builder[X]) -> None:
    """The embedding is scaled by sqrt(n_embd). Sliding-window layers have their own RoPE base."""
    full = AttentionSpec(
        g.rope("halves"),
        head_norm="before_rope",
        scale=attention_scale(g, BLOCKS_27B),
    )
    local = replace(full, rope=rope_swa(g, "halves"), window=sliding_window(g))
    spec = DecoderSpec(
        attention=sliding_layers(g, PATTERN).choose(local, full),
        activation="gelu",
        post_norms=POST_NORMS,
        embedding_scale=math.sqrt(g.embedding_length),
        logit_cap=g.hparams.number("final_logit_softcapping", 0.0),
    )
    build_decoder(g, spec)

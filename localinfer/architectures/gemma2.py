"""Gemma 2 (Google, 2024): norms before and after each branch, soft-capped scores and logits, alternating sliding
windows."""

import math
from collections.abc import Mapping
from dataclasses import replace

from localinfer.graph.attention import sliding_layers, sliding_window
from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import POST_NORMS, DecoderSpec, build_decoder

BLOCKS_27B = 46  # layers of the 27B model
PATTERN = 2  # every second layer has full attention
WINDOW = 4096  # tokens, unless the file specifies otherwise


def build(g: Builder[X], post_norms: Mapping[str, str] = POST_NORMS) -> None:
    """All layers have the same rotary embedding. A variant has no norms after the branches."""
    full = AttentionSpec(
        g.rope("halves"),
        scale=attention_scale(g, BLOCKS_27B),
        cap=g.hparams.number("attn_logit_softcapping", 50.0),
    )
    local = replace(full, window=sliding_window(g, WINDOW))
    spec = DecoderSpec(
        attention=sliding_layers(g, PATTERN, WINDOW).choose(local, full),
        activation="gelu",
        post_norms=post_norms,
        embedding_scale=math.sqrt(g.embedding_length),
        logit_cap=g.hparams.number("final_logit_softcapping", 30.0),
    )
    build_decoder(g, spec)


def attention_scale(g: Builder[X], blocks_27b: int) -> float | None:
    """Return the factor of scores: the file's, or (n_embd / n_head)^-1/2 for the 27B model, whose files do not state it
    and which is recognized by its number of layers. None means the default."""
    default = (g.embedding_length / g.attention_heads[0].count) ** -0.5 if g.block_count == blocks_27b else None
    return g.hparams.number("attention.scale", 0.0) or default

"""Gemma 2 (Google, 2024): norms before and after each branch, soft-capped scores and logits, alternating sliding
windows."""

import math
from dataclasses import replace

from localinfer.graph.attention import sliding_layers, sliding_window
from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import POST_NORMS, DecoderSpec, build_decoder

BLOCKS_27B = 46  # layers of the 27B model, which scales scores by (n_embd / n_head)^-1/2, which the file does not state
PATTERN = 2  # every second layer has full attention
WINDOW = 4096  # tokens, unless the file specifies otherwise


def build(g: Builder[X]) -> None:
    """All layers have the same rotary embedding."""
    n = g.embedding_length
    full = AttentionSpec(
        g.rope("halves"),
        scale=(n / g.attention_heads[0].count) ** -0.5 if g.block_count == BLOCKS_27B else None,
        cap=g.hparams.number("attn_logit_softcapping", 50.0),
    )
    local = replace(full, window=sliding_window(g, WINDOW))
    spec = DecoderSpec(
        attention=[local if sliding else full for sliding in sliding_layers(g, PATTERN, WINDOW)],
        activation="gelu",
        post_norms=POST_NORMS,
        embedding_scale=math.sqrt(n),
        logit_cap=g.hparams.number("final_logit_softcapping", 30.0),
    )
    build_decoder(g, spec)

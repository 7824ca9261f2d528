"""Gemma 2 (Google, 2024): norms before and after each branch, soft-capped scores and logits, alternating sliding
windows."""

import math

from localinfer.graph.decoder import POST_NORMS, AttentionSpec, DecoderSpec, build_decoder
from localinfer.graph.graph_builder import GraphBuilder

BLOCKS_27B = 46  # layers of the 27B model, which scales scores by (n_embd / n_head)^-1/2; the file does not say so
PATTERN = 2  # every second layer has full attention
WINDOW = 4096  # tokens, unless the file says otherwise


def build(g: GraphBuilder) -> None:
    """All layers have the same rotary embedding."""
    n, rope, window = g.embedding_length, g.rope("halves"), g.sliding_window(WINDOW)
    spec = DecoderSpec(
        attention=[AttentionSpec(rope, window if sliding else 0) for sliding in g.sliding_layers(PATTERN, WINDOW)],
        activation="gelu",
        post_norms=POST_NORMS,
        embedding_scale=math.sqrt(n),
        scale=(n / g.heads[0].count) ** -0.5 if g.block_count == BLOCKS_27B else None,
        cap=g.hparams.number("attn_logit_softcapping", 50.0),
        logit_cap=g.hparams.number("final_logit_softcapping", 30.0),
    )
    build_decoder(g, spec)

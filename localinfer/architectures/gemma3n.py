"""Gemma 3n (Google, 2025), the text model.

It has four residual streams, of which each layer computes with one (AltUp), a low-rank map parallel to attention
(LAuReL), and sparse gates in the first layers. As in gemma4, each layer has its own input embedding per token, and the
last layers reuse the keys and values of earlier layers.
"""

import math

from localinfer.architectures.gemma4 import attend
from localinfer.graph.attention import kv_source_layers, unscaled_attention
from localinfer.graph.builder import Builder, PerLayer, X
from localinfer.graph.decoder import BranchOutput, add_branch
from localinfer.graph.feed_forward import feed_forward

SPARSE_BLOCKS, STD_MULTIPLIER = 10, 1.6448536  # keep the largest 5 % of the gate, unless the file specifies otherwise


def build(g: Builder[X]) -> None:
    """The file gives the number of streams. Layers compute with the first one."""
    specs, sources = unscaled_attention(g), kv_source_layers(g)
    count = g.hparams.count("altup.num_inputs", 4, minimum=2, maximum=16)
    active = g.hparams.count("altup.active_idx", 0, minimum=0)
    if active:
        raise g.hparams.unsupported("altup.active_idx", active)
    usual = [STD_MULTIPLIER if block < SPARSE_BLOCKS else -math.inf for block in range(g.block_count)]
    std_multipliers = PerLayer(g.hparams.numbers("activation_sparsity_scale", g.block_count, usual.__getitem__))
    n, size = g.embedding_length, g.hparams.count("embedding_length_per_layer_input", 256)
    x = g.embeddings.tokens(math.sqrt(n))
    inputs, streams = g.embeddings.per_layer(x, size), g.cross_layer.altup(x, count)
    for blk in g.blocks():
        x = streams.predict(blk)
        h = g.norm(x, f"{blk}attn_norm")
        low = g.matmul(h, f"{blk}laurel_l", g.tensors.n_rows(f"{blk}laurel_l"))
        laurel = g.norm(g.matmul(low, f"{blk}laurel_r", n), f"{blk}laurel_post_norm")
        g.add(laurel, h)
        a = attend(g, h, blk, specs[blk], sources[blk])
        add_branch(g, x, BranchOutput(a, "attn_output"), blk, "post_attention_norm", point="attn_out")
        g.add(x, laurel)
        g.scale(x, math.sqrt(1 / 2))
        f = feed_forward(g, g.norm(x, f"{blk}ffn_norm"), blk, "gelu", std_multiplier=std_multipliers[blk])
        add_branch(g, x, BranchOutput(f, "ffn_down"), blk, "post_ffw_norm", point="ffn_out")
        first = streams.correct(blk, x)
        e = g.gate(g.matmul(first, f"{blk}inp_gate", size), inputs, "gelu", first=size * blk.number)
        streams.add_to_inactive(g.norm(g.matmul(e, f"{blk}proj", n), f"{blk}post_norm"))
    g.output.logits(streams.merge(), cap=g.hparams.number("final_logit_softcapping", 30.0))

"""Gemma 4 (Google, 2026): as gemma3, with normalised values, unscaled scores, and larger heads in full-attention
layers.

One model has experts beside the feed-forward network. The small models have per-layer input embeddings, and their last
layers reuse the keys and values of earlier ones. In some layers of the large models, the values are the keys.
"""

import math
from functools import partial

from localinfer.graph.buffers import Buffer
from localinfer.graph.decoder import AttentionSpec, BranchOutput, add_branch
from localinfer.graph.experts import Router
from localinfer.graph.graph_builder import GraphBuilder
from localinfer.graph.graph_builder_base import Block


def build(g: GraphBuilder) -> None:
    """Full-attention layers rotate a part of each head: the other pairs have practically infinite RoPE factors."""
    full, local = AttentionSpec(g.rope("halves")), AttentionSpec(g.rope_swa("halves"), g.sliding_window())
    sources, slides = g.kv_source_layers(), g.sliding_layers(0)
    x = g.embed(math.sqrt(g.embedding_length))
    size = g.hparams.count("embedding_length_per_layer_input", 0, minimum=0)
    inputs = g.per_layer_inputs(x, size) if size else None
    router = g.router(normed=True) if g.has_experts else None
    for blk in g.blocks():
        h, spec = g.norm(x, f"{blk}attn_norm"), local if slides[blk.number] else full
        a = attend(g, h, blk, spec, sources[blk.number])
        add_branch(g, x, BranchOutput(a, "attn_output"), blk, "post_attention_norm", 1.0)
        f, matrix = g.feed_forward(g.norm(x, f"{blk}ffn_norm"), blk, "gelu"), "ffn_down"
        if router:
            f, matrix = with_experts(g, x, f, blk, router), ""
        add_branch(g, x, BranchOutput(f, matrix), blk, "post_ffw_norm", 1.0)
        if inputs is not None:
            e = g.gate(g.matmul(x, f"{blk}inp_gate", size), inputs, "gelu", first=size * blk.number)
            add_branch(g, x, BranchOutput(e, "proj"), blk, "post_norm", 1.0)
        if g.has(f"{blk}layer_output_scale.weight"):
            g.scale(x, g.scalar(f"{blk}layer_output_scale.weight"))
    g.logits(x, cap=g.hparams.number("final_logit_softcapping", 0.0))


def attend(g: GraphBuilder, h: Buffer, blk: Block, spec: AttentionSpec, source: int) -> Buffer:
    """Attend with the layer's own keys and values, or with those of the layer `source`. In the latter case the layer's
    own key and value tensors are not used."""
    heads = blk.heads
    attend_with = partial(g.attend, blk, rope=spec.rope, window=spec.window, norm="before_rope", scale=1.0)
    n_q, n_kv = heads.count * heads.key, heads.count_kv * heads.key
    if source != blk.number:
        g.ignore(*(f"{blk}attn_{name}.weight" for name in ("k", "v", "k_norm")))
        return attend_with(g.matmul(h, f"{blk}attn_q", n_q), kv_source=source)
    if g.has(f"{blk}attn_v.weight") or g.has(f"{blk}attn_qkv.weight"):
        q, k, v = g.qkv(h, blk)
    else:
        q, k = g.matmul(h, f"{blk}attn_q", n_q), g.matmul(h, f"{blk}attn_k", n_kv)
        v = k
    return attend_with(q, k, g.norm_groups(v, heads.value))


def with_experts(g: GraphBuilder, x: Buffer, f: Buffer, blk: Block, router: Router) -> Buffer:
    """Return the sum of the dense branch and the experts, each after its own norm. The router gets the residual stream
    before the branch, with its own norm."""
    n = g.embedding_length
    y, router_scale = g.norm(g.matmul(f, f"{blk}ffn_down", n), f"{blk}post_ffw_norm_1"), f"{blk}ffn_gate_inp.scale"
    router_input = g.norm_groups(x, n, router_scale)
    g.scale(router_input, n**-0.5)
    e = g.experts(g.norm(x, f"{blk}pre_ffw_norm_2"), blk, router, "gelu", routed_by=router_input)
    g.add(y, g.norm(e, f"{blk}post_ffw_norm_2"))
    return y

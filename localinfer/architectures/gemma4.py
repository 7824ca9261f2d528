"""Gemma 4 (Google, 2026): as gemma3, with normalised values, unscaled scores, and larger heads in full-attention
layers.

One model has experts beside the feed-forward network. The small models have per-layer input embeddings, and their last
layers reuse the keys and values of earlier ones. In some layers of the large models, the values are the keys.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from localinfer.graph.attention import kv_source_layers, qkv, rope_swa, sliding_layers
from localinfer.graph.attention_spec import AttentionSpec
from localinfer.graph.builder import Builder, X
from localinfer.graph.decoder import BranchOutput, add_branch
from localinfer.graph.feed_forward import feed_forward
from localinfer.graph.mixture_of_experts import has_experts, read_router
from localinfer.graph.model_properties import Block
from localinfer.graph.router import Router
from localinfer.graph.sliding_window import read_sliding_window


def build(g: Builder[X]) -> None:
    """Full-attention layers rotate a part of each head: the other pairs have practically infinite RoPE factors."""
    specs, sources = attention_specs(g), kv_source_layers(g)
    x = g.embeddings.tokens(math.sqrt(g.embedding_length))
    size = g.hparams.count("embedding_length_per_layer_input", 0, minimum=0)
    inputs = g.embeddings.per_layer(x, size) if size else None
    router = read_router(g, normed=True) if has_experts(g) else None
    for blk in g.blocks():
        a = attend(g, g.norm(x, f"{blk}attn_norm"), blk, specs[blk.number], sources[blk.number])
        add_branch(g, x, BranchOutput(a, "attn_output"), blk, "post_attention_norm")
        f, matrix = feed_forward(g, g.norm(x, f"{blk}ffn_norm"), blk, "gelu"), "ffn_down"
        if router:
            f, matrix = with_experts(g, x, f, blk, router), ""
        add_branch(g, x, BranchOutput(f, matrix), blk, "post_ffw_norm")
        if inputs is not None:
            e = g.gate(g.matmul(x, f"{blk}inp_gate", size), inputs, "gelu", first=size * blk.number)
            add_branch(g, x, BranchOutput(e, "proj"), blk, "post_norm")
        if g.tensors.has(f"{blk}layer_output_scale.weight"):
            g.scale(x, g.tensors.scalar(f"{blk}layer_output_scale.weight"))
    g.logits(x, cap=g.hparams.number("final_logit_softcapping", 0.0))


def attention_specs(g: Builder[X]) -> Sequence[AttentionSpec]:
    """Return the attention of each layer."""
    full = AttentionSpec(g.rope("halves"), head_norm="before_rope", scale=1.0)
    local = replace(full, rope=rope_swa(g, "halves"), window=read_sliding_window(g.hparams))
    return [local if sliding else full for sliding in sliding_layers(g, 0)]


def attend(g: Builder[X], h: X, blk: Block, spec: AttentionSpec, source: int) -> X:
    """Attend with the layer's own keys and values, or with those of the layer `source`. In the latter case the layer's
    own key and value tensors are not used."""
    heads = blk.heads
    n_q, n_kv = heads.count * heads.key, heads.count_kv * heads.key
    if source != blk.number:
        g.tensors.accept(*(f"{blk}attn_{name}.weight" for name in ("k", "v", "k_norm")))
        return g.attend(blk, g.matmul(h, f"{blk}attn_q", n_q), None, None, spec, kv_source=source)
    if g.tensors.has(f"{blk}attn_v.weight") or g.tensors.has(f"{blk}attn_qkv.weight"):
        q, k, v = qkv(g, h, blk)
    else:
        q, k = g.matmul(h, f"{blk}attn_q", n_q), g.matmul(h, f"{blk}attn_k", n_kv)
        v = k
    return g.attend(blk, q, k, g.norm_groups(v, heads.value), spec)


def with_experts(g: Builder[X], x: X, f: X, blk: Block, router: Router) -> X:
    """Return the sum of the dense branch and the experts, each after its own norm. The router gets the residual stream
    before the branch, with its own norm."""
    n = g.embedding_length
    y, router_scale = g.norm(g.matmul(f, f"{blk}ffn_down", n), f"{blk}post_ffw_norm_1"), f"{blk}ffn_gate_inp.scale"
    router_input = g.norm_groups(x, n, router_scale)
    g.scale(router_input, n**-0.5)
    e = g.experts.apply(g.norm(x, f"{blk}pre_ffw_norm_2"), blk, router, "gelu", router_input=router_input)
    g.add(y, g.norm(e, f"{blk}post_ffw_norm_2"))
    return y

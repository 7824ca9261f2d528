"""Gemma 4 (Google, 2026): as gemma3, with normalized values, unscaled scores, and larger heads for full attention.

One model has experts beside the feed-forward network. The small models have per-layer input embeddings, and their last
layers reuse the keys and values of earlier ones. In some layers of the large models, the values are the keys.
"""

import math

from localinfer.graph.attention import kv_source_layers, qkv, unscaled_attention
from localinfer.graph.builder import AttentionSpec, Block, Builder, Router, X
from localinfer.graph.decoder import BranchOutput, add_branch
from localinfer.graph.feed_forward import feed_forward
from localinfer.graph.mixture_of_experts import has_experts, read_router


def build(g: Builder[X]) -> None:
    """Full-attention layers rotate only some pairs of each head; the others have practically infinite RoPE factors."""
    specs, sources = unscaled_attention(g), kv_source_layers(g)
    x = g.embeddings.tokens(math.sqrt(g.embedding_length))
    size = g.hparams.count("embedding_length_per_layer_input", 0, minimum=0)
    inputs = g.embeddings.per_layer(x, size) if size else None
    router = read_router(g, normed=True) if has_experts(g) else None
    for blk in g.blocks():
        a = attend(g, g.norm(x, f"{blk}attn_norm"), blk, specs[blk], sources[blk])
        add_branch(g, x, BranchOutput(a, "attn_output"), blk, "post_attention_norm", point="attn_out")
        g.point(x, f"{blk}resid_mid")
        f, matrix = feed_forward(g, g.norm(x, f"{blk}ffn_norm"), blk, "gelu"), "ffn_down"
        if router:
            f, matrix = with_experts(g, x, f, blk, router), ""
        add_branch(g, x, BranchOutput(f, matrix), blk, "post_ffw_norm", point="ffn_out")
        if inputs is not None:
            e = g.gate(g.matmul(x, f"{blk}inp_gate", size), inputs, "gelu", first=size * blk.number)
            add_branch(g, x, BranchOutput(e, "proj"), blk, "post_norm")
        if g.tensors.has(f"{blk}layer_output_scale.weight"):
            g.scale(x, g.tensors.scalar(f"{blk}layer_output_scale.weight"))
    g.output.logits(x, cap=g.hparams.number("final_logit_softcapping", 0.0))


def attend(g: Builder[X], h: X, blk: Block, spec: AttentionSpec, source: int) -> X:
    """Attend to the keys and values of the layer `source`. If it is another one, own key tensors are not used."""
    n_q, n_kv = blk.heads.count * blk.heads.key, blk.heads.count_kv * blk.heads.key
    if source != blk.number:
        g.tensors.accept(*(f"{blk}attn_{name}.weight" for name in ("k", "v", "k_norm")))
        return g.attend(blk, g.matmul(h, f"{blk}attn_q", n_q), None, None, spec, kv_source=source)
    if g.tensors.has(f"{blk}attn_v.weight") or g.tensors.has(f"{blk}attn_qkv.weight"):
        q, k, v = qkv(g, h, blk)
    else:
        q, k = g.matmuls(h, (f"{blk}attn_q", n_q), (f"{blk}attn_k", n_kv))
        v = k
    return g.attend(blk, q, k, g.norm_groups(v, blk.heads.value), spec)


def with_experts(g: Builder[X], x: X, f: X, blk: Block, router: Router) -> X:
    """Return the sum of the dense branch and the experts, each after its own norm. The router gets the residual stream
    before the branch, with its own norm."""
    y = g.norm(g.matmul(f, f"{blk}ffn_down", g.embedding_length), f"{blk}post_ffw_norm_1")
    router_input = g.norm_groups(x, g.embedding_length, f"{blk}ffn_gate_inp.scale")
    g.scale(router_input, g.embedding_length**-0.5)
    e = g.experts.apply(g.norm(x, f"{blk}pre_ffw_norm_2"), blk, router, "gelu", router_input=router_input)
    g.add(y, g.norm(e, f"{blk}post_ffw_norm_2"))
    return y

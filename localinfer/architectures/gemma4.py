"""Gemma 4 (Google, 2026): as gemma3, with values normalised, scores as they are, and longer heads where all is seen.

One has experts beside the feed-forward network. The small ones tell every layer something of its own about each
token, and their last layers look at the keys and values of earlier ones. Of the large ones, some layers' values are
their keys.
"""

import math
from functools import partial

from localinfer.plan.basics import Block
from localinfer.plan.buffers import Buffer
from localinfer.plan.decoder import Sight, join
from localinfer.plan.experts import Router
from localinfer.plan.recorder import Recorder


def record(r: Recorder) -> None:
    """Rope of layers that see all turns a part of each head: the others' factors are next to infinite."""
    everything, nearby = Sight(r.rope("halves")), Sight(r.rope_swa("halves"), r.sliding_window())
    sources, slides = r.sources_of_keys(), r.sliding(0)
    x = r.embed(math.sqrt(r.embedding_length))
    size = r.keys.count("embedding_length_per_layer_input", 0, least=0)
    inputs = r.layer_inputs(x, size) if size else None
    router = r.router(normed=True) if r.has_experts else None
    for blk in r.blocks():
        h, sight = r.norm(x, f"{blk}attn_norm"), nearby if slides[blk.number] else everything
        a = attend(r, h, blk, sight, sources[blk.number])
        join(r, x, a, blk, "attn_output", "post_attention_norm", 1.0)
        f, matrix = r.feed_forward(r.norm(x, f"{blk}ffn_norm"), blk, "gelu"), "ffn_down"
        if router:
            f, matrix = with_experts(r, x, f, blk, router), ""
        join(r, x, f, blk, matrix, "post_ffw_norm", 1.0)
        if inputs is not None:
            g = r.gate(r.matmul(x, f"{blk}inp_gate", size), inputs, "gelu", first=size * blk.number)
            join(r, x, g, blk, "proj", "post_norm", 1.0)
        if r.has(f"{blk}layer_output_scale.weight"):
            r.scale(x, r.number(f"{blk}layer_output_scale.weight"))
    r.logits(x, cap=r.keys.number("final_logit_softcapping", 0.0))


def attend(r: Recorder, h: Buffer, blk: Block, sight: Sight, source: int) -> Buffer:
    """With keys and values of its own, or with another block's; what a file has of its own is not used then."""
    heads, look = blk.heads, partial(r.attend, blk, rope=sight.rope, window=sight.window, norm="before", scale=1.0)
    n_q, n_kv = heads.count * heads.key, heads.count_kv * heads.key
    if source != blk.number:
        r.ignore(*(f"{blk}attn_{name}.weight" for name in ("k", "v", "k_norm")))
        return look(r.matmul(h, f"{blk}attn_q", n_q), of=source)
    if r.has(f"{blk}attn_v.weight") or r.has(f"{blk}attn_qkv.weight"):
        q, k, v = r.qkv(h, blk)
    else:
        q, k = r.matmul(h, f"{blk}attn_q", n_q), r.matmul(h, f"{blk}attn_k", n_kv)
        v = k
    return look(q, k, r.norm_parts(v, heads.value))


def with_experts(r: Recorder, x: Buffer, f: Buffer, blk: Block, router: Router) -> Buffer:
    """Both are normalised, then added. The router looks at x as it is before the branch, normalised in its own way."""
    n = r.embedding_length
    y, seen = r.norm(r.matmul(f, f"{blk}ffn_down", n), f"{blk}post_ffw_norm_1"), f"{blk}ffn_gate_inp.scale"
    by = r.norm_parts(x, n, seen)
    r.scale(by, n**-0.5)
    e = r.experts(r.norm(x, f"{blk}pre_ffw_norm_2"), blk, router, "gelu", routed_by=by)
    r.add(y, r.norm(e, f"{blk}post_ffw_norm_2"))
    return y

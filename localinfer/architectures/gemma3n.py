"""Gemma 3n (Google, 2025), the text model: four residual streams, of which a block computes with one (AltUp); a map of
low rank beside attention (LAuReL); gates of which in some blocks only the largest count; and, as in gemma4, something
of its own for every layer about each token, and last layers that look at the keys and values of earlier ones.
"""

import math

from localinfer.architectures.gemma4 import attend
from localinfer.plan.decoder import Sight, join
from localinfer.plan.recorder import Recorder

SPARSE_BLOCKS, DEVIATIONS = 10, 1.6448536  # a twentieth of the gate counts, unless the file says otherwise


def record(r: Recorder) -> None:
    """Streams are as many as the file says; the first is the one that blocks compute with."""
    everything, nearby = Sight(r.rope("halves")), Sight(r.rope_swa("halves"), r.sliding_window())
    sources, slides = r.sources_of_keys(), r.sliding(0)
    count, active = r.keys.count("altup.num_inputs", 4, least=2, most=16), r.keys.count("altup.active_idx", 0, least=0)
    if active:
        raise r.keys.refuse("altup.active_idx", active)
    least = r.keys.numbers(
        "activation_sparsity_scale", r.block_count, lambda block: DEVIATIONS if block < SPARSE_BLOCKS else -math.inf
    )
    n, size = r.embedding_length, r.keys.count("embedding_length_per_layer_input", 256)
    x = r.embed(math.sqrt(n))
    inputs, xs = r.layer_inputs(x, size), r.streams(x, count)
    for blk in r.blocks():
        x = xs.predict(blk)
        h, sight = r.norm(x, f"{blk}attn_norm"), nearby if slides[blk.number] else everything
        low = r.matmul(h, f"{blk}laurel_l", r.rows(f"{blk}laurel_l"))
        beside = r.norm(r.matmul(low, f"{blk}laurel_r", n), f"{blk}laurel_post_norm")
        r.add(beside, h)
        join(r, x, attend(r, h, blk, sight, sources[blk.number]), blk, "attn_output", "post_attention_norm", 1.0)
        r.add(x, beside)
        r.scale(x, math.sqrt(1 / 2))
        f = r.feed_forward(r.norm(x, f"{blk}ffn_norm"), blk, "gelu", least=least[blk.number])
        join(r, x, f, blk, "ffn_down", "post_ffw_norm", 1.0)
        first = xs.correct(blk, x)
        g = r.gate(r.matmul(first, f"{blk}inp_gate", size), inputs, "gelu", first=size * blk.number)
        xs.add_to_others(r.norm(r.matmul(g, f"{blk}proj", n), f"{blk}post_norm"))
    r.logits(xs.merged(), cap=r.keys.number("final_logit_softcapping", 30.0))

"""DeepSeek-V2 and V3 (DeepSeek, 2024), R1, Kimi K2, GLM-4.7-Flash: latent attention, and many small experts.

The large models' queries go through a narrow place, too. The choice of V3's experts is biased, and a group of them is
chosen for its two best; V2's for its best one.
"""

from localinfer.plan.basics import Block
from localinfer.plan.buffers import Buffer
from localinfer.plan.decoder import Mixed, Sight, decoder
from localinfer.plan.experts import Router
from localinfer.plan.recorder import Recorder


def record(r: Recorder) -> None:
    """The first blocks have no experts."""
    dense = r.keys.count("leading_dense_block_count", 0, least=0)
    third = r.has(f"blk.{min(dense, r.block_count - 1)}.exp_probs_b.bias")
    router = r.router("sigmoid" if third else "softmax", best=2 if third else 1) if r.has_experts else None
    latent_decoder(r, router)


def latent_decoder(r: Recorder, router: Router | None) -> None:
    """A decoder with latent attention: the file says how long everything is."""
    shape, rope = r.latent(), r.rope("neighbours", amplified=False)

    def latent_attention(blk: Block, h: Buffer) -> Mixed:
        n = blk.heads.count
        narrow = h
        if r.has(f"{blk}attn_q_a.weight"):
            rank = r.keys.count("attention.q_lora_rank")
            narrow = r.norm(r.matmul(h, f"{blk}attn_q_a", rank), f"{blk}attn_q_a_norm")
        q = r.matmul(narrow, f"{blk}attn_q" if narrow is h else f"{blk}attn_q_b", n * (shape.plain + shape.turning))
        plain, turning = r.split(q, n, shape.plain, shape.turning)
        q = r.join(n, turning, r.head_matmul(plain, f"{blk}attn_k_b", n, shape.rank))
        latent, turning = r.slices(h, f"{blk}attn_kv_a_mqa", shape.rank, shape.turning)
        k = r.join(1, turning, r.norm(latent, f"{blk}attn_kv_a_norm"))
        found = r.attend(blk, q, k, rope=rope, scale=shape.scale)
        return Mixed(r.head_matmul(found, f"{blk}attn_v_b", n, shape.value), "attn_output")

    decoder(r, Sight(rope), mixer=latent_attention, router=router)

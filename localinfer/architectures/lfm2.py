"""LFM2 (Liquid AI, 2025): most blocks mix tokens by a short convolution between two gates, some by attention."""

from localinfer.plan.basics import Block
from localinfer.plan.buffers import Buffer
from localinfer.plan.decoder import Mixed, Sight, decoder
from localinfer.plan.experts import Router
from localinfer.plan.recorder import Recorder


def record(r: Recorder, router: Router | None = None) -> None:
    """Blocks without heads of keys have the convolution; others of its kind have experts."""
    n, width = r.embedding_length, r.keys.count("shortconv.l_cache", most=64)

    def short_convolution(blk: Block, h: Buffer) -> Mixed | None:
        if blk.heads.count_kv:
            return None
        before, behind, x = r.slices(h, f"{blk}shortconv.in_proj", n, n, n)
        y = r.convolve(r.gate(x, before), f"{blk}shortconv.conv", width)
        return Mixed(r.gate(behind, y), "shortconv.out_proj")

    decoder(
        r, Sight(r.rope("halves")), head_norm="before", mixer=short_convolution, router=router,
        output_norm="token_embd_norm",
    )  # fmt: skip

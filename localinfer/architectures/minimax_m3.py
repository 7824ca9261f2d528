"""MiniMax-M3 (MiniMax, 2026): normalized heads, a clamped gated unit, many experts with a biased router and a shared
expert, and sparse attention: an indexer chooses blocks of positions for each key head."""

from dataclasses import replace

from localinfer.graph.builder import AttentionSpec, Block, BlockChoice, Builder, PerLayer, X
from localinfer.graph.decoder import BranchOutput, DecoderSpec, attention_branch, build_decoder
from localinfer.graph.mixture_of_experts import read_router
from localinfer.kernels.layout import PANEL_KEYS


def build(g: Builder[X]) -> None:
    """Decoder whose first layers are dense, and have no indexer. The rotary embedding is that of the indexer, too."""
    heads, size = (g.hparams.count(f"attention.indexer.{key}") for key in ("head_count", "key_length"))
    rope, blocks = g.rope("halves"), read_blocks(g)
    attention = AttentionSpec(rope, head_norm="before_rope")
    has_indexer = PerLayer([g.tensors.has(f"blk.{n}.indexer.q_proj.weight") for n in range(g.block_count)])
    spec = DecoderSpec(
        attention=has_indexer.choose(replace(attention, selected=True), attention),
        activation="clamped_swiglu",
        router=read_router(g, "sigmoid", normed=True),
    )

    def mixer(blk: Block, h: X) -> BranchOutput[X]:
        if has_indexer[blk]:
            q = g.norm_groups(g.matmul(h, f"{blk}indexer.q_proj", heads * size), size, f"{blk}indexer.q_norm.weight")
            k = g.norm(g.matmul(h, f"{blk}indexer.k_proj", size), f"{blk}indexer.k_norm")
            g.select_blocks(blk, q, k, rope, blocks)
        return attention_branch(g, spec, blk, h)

    build_decoder(g, spec, mixer)


def read_blocks(g: Builder[X]) -> BlockChoice:
    """Return the blocks that a token attends to."""
    size, top_k = (g.hparams.count(f"attention.indexer.{name}") for name in ("block_size", "top_k"))
    local = g.hparams.count("attention.indexer.local_blocks", minimum=0)
    if size < PANEL_KEYS:
        raise g.hparams.unsupported("attention.indexer.block_size", f"{size}, which is below {PANEL_KEYS},")
    if local > top_k:
        raise g.hparams.error("attention.indexer.local_blocks", f"is {local}; at most {top_k} blocks are chosen")
    return BlockChoice(size, top_k, local)

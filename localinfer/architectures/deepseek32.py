"""DeepSeek-V3.2 (DeepSeek, 2025): deepseek2 with sparse attention. A lightning indexer with keys of its own chooses the
positions that a token attends to."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from localinfer.graph.attention import latent_attention
from localinfer.graph.builder import AttentionSpec, Block, Builder, X
from localinfer.graph.decoder import BranchOutput, DecoderSpec, build_decoder
from localinfer.graph.indexer import read_indexer
from localinfer.graph.mixture_of_experts import read_router
from localinfer.graph.properties.latent_attention import read_latent_shape


def build(g: Builder[X]) -> None:
    """Decoder whose layers all have an indexer, which rotates halves of its heads."""
    sparse_decoder(g, "halves", [True] * g.block_count)


def sparse_decoder(g: Builder[X], pairs: str, has_indexer: Sequence[bool]) -> None:
    """Build a decoder with sparse latent attention. Layers without an indexer attend to the positions that the last one
    before them chose. `pairs` are those of the indexer's rotary embedding; MTP layers attend to all positions."""
    shape, select = read_latent_shape(g.hparams), read_indexer(g, pairs)
    dense = AttentionSpec(g.rope("interleaved", amplified=False), scale=shape.scale)
    sparse = replace(dense, selected=True)

    def mixer(blk: Block, h: X) -> BranchOutput[X]:
        is_mtp_layer = blk.number >= g.block_count
        selects = partial(select, blk, h) if not is_mtp_layer and has_indexer[blk.number] else None
        y = latent_attention(g, h, blk, shape, dense if is_mtp_layer else sparse, selects)
        return BranchOutput(y, "attn_output")

    build_decoder(g, DecoderSpec(attention=sparse, router=read_router(g, "sigmoid"), mtp_states="normed"), mixer)

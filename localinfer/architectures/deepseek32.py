"""DeepSeek-V3.2 (DeepSeek, 2025): deepseek2 with sparse attention. A lightning indexer with keys of its own chooses the
positions that a token attends to."""

from localinfer.graph.builder import AttentionSpec, Block, Builder, PerLayer, X
from localinfer.graph.decoder import BranchOutput, DecoderSpec, build_decoder
from localinfer.graph.indexer import read_indexer, read_indexer_layers, sparse_attention
from localinfer.graph.mixture_of_experts import read_router
from localinfer.graph.properties.latent_attention import read_latent_shape


def build(g: Builder[X]) -> None:
    """Decoder whose layers all have an indexer, which rotates halves of its heads."""
    sparse_decoder(g, "halves", read_indexer_layers(g, lambda _: True))


def sparse_decoder(g: Builder[X], pairs: str, has_indexer: PerLayer[bool]) -> None:
    """Build a decoder with sparse latent attention. Layers without an indexer attend to the positions that the last one
    before them chose. `pairs` are those of the indexer's rotary embedding."""
    shape, select = read_latent_shape(g.hparams), read_indexer(g, pairs)
    spec = AttentionSpec(g.rope("interleaved", amplified=False), scale=shape.scale)

    def mixer(blk: Block, h: X) -> BranchOutput[X]:
        return BranchOutput(sparse_attention(g, h, blk, shape, spec, select, has_indexer), "attn_output")

    build_decoder(g, DecoderSpec(attention=spec, router=read_router(g, "sigmoid"), mtp_states="normed"), mixer)

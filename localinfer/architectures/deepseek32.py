"""DeepSeek-V3.2 (DeepSeek, 2025): deepseek2 with sparse attention. A lightning indexer with keys of its own chooses the
positions that a token attends to."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from localinfer.graph.attention import latent_attention
from localinfer.graph.builder import AttentionSpec, Block, Builder, X
from localinfer.graph.decoder import BranchOutput, DecoderSpec, build_decoder
from localinfer.graph.mixture_of_experts import read_router
from localinfer.graph.properties.latent_attention import read_latent_shape

KEY_EPS = 1e-6  # of the LayerNorm of the indexer's keys


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


def read_indexer(
    g: Builder[X], pairs: str, *, key_eps: float = KEY_EPS, at_end: bool = False
) -> Callable[[Block, X, X], None]:
    """Return the indexer, a function of a layer, of its input, and of the input of its queries. It chooses the
    positions that the attention of this layer and of later ones attends to. Its rotary embedding rotates the first
    values of a head, or the last ones if `at_end`."""
    sizes = (g.hparams.count(f"attention.indexer.{key}") for key in ("head_count", "key_length", "top_k"))
    rope, (heads, size, top_k) = g.rope(pairs, amplified=False), sizes
    if at_end and rope.n_rot >= size:
        raise g.hparams.error("attention.indexer.key_length", f"is {size}; more than {rope.n_rot} values are needed")

    def rotated_first(x: X, heads: int) -> X:
        """Return heads whose first values are rotated: products do not depend on the order of values."""
        if not at_end:
            return x
        others, rotated = g.per_head.split(x, heads, size - rope.n_rot, rope.n_rot)
        return g.per_head.join(heads, rotated, others)

    def select(blk: Block, h: X, narrow: X) -> None:
        q = g.matmul(narrow, f"{blk}indexer.attn_q_b", heads * size)
        k = g.norm(g.matmul(h, f"{blk}indexer.attn_k", size), f"{blk}indexer.k_norm", layer_norm_eps=key_eps)
        q, k, weights = rotated_first(q, heads), rotated_first(k, 1), g.matmul(h, f"{blk}indexer.proj", heads)
        g.select_positions(blk, q, k, weights, AttentionSpec(rope), top_k)

    return select

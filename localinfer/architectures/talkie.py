"""Talkie (2026): norms without weights, heads normalized after their rotation, with a factor for each head of queries,
and the normalized embedding added to the residual stream after each layer."""

from localinfer.graph.attention import qkv, rope_before_norms
from localinfer.graph.builder import AttentionSpec, Block, Builder, X
from localinfer.graph.decoder import BranchOutput, DecoderSpec, build_decoder


def build(g: Builder[X]) -> None:
    """The matrices of branches have scales. Heads are normalized before they are rotated here, which gives the same."""
    g.use_unweighted_norms()
    attention, scale = AttentionSpec(rope_before_norms(g, "halves")), g.hparams.positive("logit_scale")
    spec = DecoderSpec(attention=attention, unweighted_embedding_norm=True, embedding_skip=True, logit_scale=scale)

    def attend(blk: Block, h: X) -> BranchOutput[X]:
        q, k, v = qkv(g, h, blk)
        q = g.norm_groups(q, blk.heads.key, f"{blk}attn_q_norm.weight", per_group_weight=True)
        return BranchOutput(g.attend(blk, q, g.norm_groups(k, blk.heads.key), v, attention), "attn_output")

    build_decoder(g, spec, attend)

"""Talkie (2026): norms without weights, heads normalized after their rotation, with a factor for each head of queries,
and the normalized embedding added to the residual stream after each layer."""

from dataclasses import replace

from localinfer.graph.attention import qkv
from localinfer.graph.builder import AttentionSpec, Block, Builder, X
from localinfer.graph.decoder import BranchOutput, DecoderSpec, apply_decoder_block


def build(g: Builder[X]) -> None:
    """The matrices of branches have scales. Heads are normalized before they are rotated here, which gives the same."""
    g.use_unweighted_norms()
    spec = DecoderSpec(attention=AttentionSpec(replace(g.rope("halves"), amplitude=1.0)))

    def attend(blk: Block, h: X) -> BranchOutput[X]:
        q, k, v = qkv(g, h, blk)
        q = g.norm_groups(q, blk.heads.key, f"{blk}attn_q_norm.weight", per_group_weight=True)
        return BranchOutput(g.attend(blk, q, g.norm_groups(k, blk.heads.key), v, spec.attention_of(blk)), "attn_output")

    x = g.embeddings.tokens()
    g.norm_groups(x, g.embedding_length, out=x)
    embedding = g.cross_layer.buffer(g.embedding_length)
    g.cross_layer.copy(x, embedding)
    for blk in g.blocks():
        apply_decoder_block(g, spec, attend, blk, x)
        g.add(x, embedding, g.tensors.scalar(f"{blk}layer_output_scale.weight"))
    g.output.logits(x, scale=g.hparams.positive("logit_scale"))

"""StableLM (Stability AI, 2023): LayerNorms. The 12B model has parallel branches and a norm per head."""

from localinfer.graph.decoder import PRE_NORMS, AttentionSpec, DecoderSpec, build_decoder
from localinfer.graph.graph_builder import GraphBuilder

ONE_NORM = {"attention": "attn_norm", "feed_forward": "attn_norm"}


def build(g: GraphBuilder) -> None:
    """Branches are parallel if the file has one norm for both. RoPE is partial."""
    parallel = g.hparams.flag("use_parallel_residual", not g.has("blk.0.ffn_norm.weight"))
    spec = DecoderSpec(
        attention=AttentionSpec(g.rope("halves")),
        parallel=parallel,
        pre_norms=ONE_NORM if parallel else PRE_NORMS,
        head_norm="per_head" if g.has("blk.0.attn_q_norm.weight") else "none",
    )
    build_decoder(g, spec)

"""StableLM (Stability AI, 2023): LayerNorms. The 12B model has parallel branches and a norm per head."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import ONE_NORM, PRE_NORMS, DecoderSpec, build_decoder


def build(g: Builder[X]) -> None:
    """Branches are parallel if the file has one norm for both. RoPE is partial."""
    g.use_layer_norm()
    parallel = g.hparams.flag("use_parallel_residual", not g.tensors.has("blk.0.ffn_norm.weight"))
    head_norm = "per_head" if g.tensors.has("blk.0.attn_q_norm.weight") else "none"
    spec = DecoderSpec(
        attention=AttentionSpec(g.rope("halves"), head_norm=head_norm),
        parallel=parallel,
        pre_norms=ONE_NORM if parallel else PRE_NORMS,
    )
    build_decoder(g, spec)

"""GLM-4.5 and 4.6 (Zhipu AI, 2025): as dots1, usually with biases, and RoPE on half of each head. The larger model
normalizes heads. The text model of GLM-4.5V has M-RoPE."""

from localinfer.graph.attention import rope_of_file
from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder
from localinfer.graph.mixture_of_experts import read_router

NORMS = {"attention": "attn_norm", "feed_forward": "post_attention_norm"}


def build(g: Builder[X]) -> None:
    """Decoder with a sigmoid router, whose weights are normalized and scaled as the metadata specifies."""
    head_norm = "before_rope" if g.tensors.has("blk.0.attn_q_norm.weight") else "none"
    router = read_router(g, "sigmoid", normed=True)
    spec = DecoderSpec(
        attention=AttentionSpec(rope_of_file(g, "halves"), head_norm=head_norm),
        pre_norms=NORMS,
        router=router,
        mtp_states="normed",
    )
    build_decoder(g, spec)

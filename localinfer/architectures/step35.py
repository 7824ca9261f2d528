"""Step 3.5 (StepFun, 2026): normalized heads, whose outputs have sigmoid gates, sliding-window layers with more heads
and other rotary embeddings, and many experts with a biased router and a shared expert, whose gates are limited."""

from dataclasses import replace

from localinfer.graph.attention import half_rope, rope_swa, sliding_layers, sliding_window
from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder, gated_attention
from localinfer.graph.mixture_of_experts import limited_activations, read_router


def build(g: Builder[X]) -> None:
    """Decoder with dense first layers. Full-attention layers rotate a half of each head."""
    g.hparams.accept("moe_every_n_layers")  # the tensors determine which layers are mixtures of experts
    full = AttentionSpec(half_rope(g, "halves"), head_norm="before_rope")
    local = replace(full, rope=rope_swa(g, "halves", "rope.freq_base"), window=sliding_window(g))
    routed, others = (limited_activations(g, "limited_silu", f"swiglu_clamp_{key}") for key in ("exp", "shexp"))
    spec = DecoderSpec(
        attention=sliding_layers(g, 0, mtp=False).choose(local, full),
        activation=routed,
        other_activation=others,
        router=read_router(g, "sigmoid", normed=True),
        mtp_states="residual",
    )
    build_decoder(g, spec, gated_attention(g, spec, "sigmoid"))

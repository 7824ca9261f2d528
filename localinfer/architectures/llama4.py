"""Llama 4 (Meta, 2025; Scout and Maverick, text only): three layers with RoPE and chunked attention for each
full-attention layer without RoPE. Each token has one routed and one shared expert, in every layer or in every other."""

from localinfer.graph.attention import sliding_layers, sliding_window, temperature_rope
from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder
from localinfer.graph.mixture_of_experts import read_router

PATTERN = 4  # every fourth layer has full attention
ATTENTION_CHUNK = 8192  # positions per chunk
MAVERICK = 128  # number of experts of Maverick, which does not normalize heads, which files do not state


def build(g: Builder[X]) -> None:
    """Expert inputs are multiplied by the expert's weight."""
    chunk = sliding_window(g, ATTENTION_CHUNK)
    if not chunk:
        raise g.hparams.unsupported("attention.sliding_window", 0)
    router = read_router(g, "sigmoid", weighs_inputs=True)
    g.hparams.accept("interleave_moe_layer_step")  # the router tensors determine which layers are mixtures
    norm = "none" if router.count == MAVERICK else "unweighted"
    local = AttentionSpec(g.rope("interleaved", with_temperature=False), chunk, chunked=True, head_norm=norm)
    full = AttentionSpec(temperature_rope(g, 0.1, ATTENTION_CHUNK, offset=1))
    spec = DecoderSpec(
        attention=sliding_layers(g, PATTERN, ATTENTION_CHUNK).choose(local, full),
        router=router,
    )
    build_decoder(g, spec)

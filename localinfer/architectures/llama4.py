"""Llama 4 (Meta, 2025; Scout and Maverick, text only): three layers with RoPE and chunked attention for each
full-attention layer without RoPE. Each token has one routed and one shared expert, in every layer or in every other."""

from localinfer.graph.decoder import AttentionSpec, DecoderSpec, build_decoder
from localinfer.graph.graph_builder import GraphBuilder

PATTERN = 4  # every fourth layer has full attention
ATTENTION_CHUNK = 8192  # positions per chunk
MAVERICK = 128  # number of experts of Maverick, which does not normalise heads; files do not say so


def build(g: GraphBuilder) -> None:
    """Expert inputs are multiplied by the expert's weight."""
    chunk = g.sliding_window(ATTENTION_CHUNK)
    if not chunk:
        raise g.hparams.unsupported("attention.sliding_window", 0)
    router = g.router("sigmoid", weighs_inputs=True)
    g.hparams.accept("interleave_moe_layer_step")  # the router tensors tell which layers are mixtures
    norm = "none" if router.count == MAVERICK else "unweighted"
    local = AttentionSpec(g.rope("interleaved", with_temperature=False), chunk, chunked=True, head_norm=norm)
    full = AttentionSpec(g.temperature_rope(0.1, ATTENTION_CHUNK, offset=1))
    spec = DecoderSpec(
        attention=[local if is_local else full for is_local in g.sliding_layers(PATTERN, ATTENTION_CHUNK)],
        router=router,
    )
    build_decoder(g, spec)

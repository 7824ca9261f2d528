"""Command R7B and Command A (Cohere, 2024): as command-r, with three sliding-window layers for each full-attention
layer. The full-attention layers have no rotary embedding."""

from localinfer.graph.decoder import AttentionSpec, DecoderSpec, build_decoder
from localinfer.graph.graph_builder import GraphBuilder

ONE_NORM = {"attention": "attn_norm", "feed_forward": "attn_norm"}
PATTERN = 4


def build(g: GraphBuilder) -> None:
    """Decoder with parallel branches; the logits are multiplied by `logit_scale`."""
    full, local = AttentionSpec(None), AttentionSpec(g.rope("interleaved"), g.sliding_window())
    specs = [local if sliding else full for sliding in g.sliding_layers(PATTERN)]
    spec = DecoderSpec(
        attention=specs, parallel=True, pre_norms=ONE_NORM, logit_scale=g.hparams.positive("logit_scale", 1.0)
    )
    build_decoder(g, spec)

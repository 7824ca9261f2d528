"""Command R7B and Command A (Cohere, 2024): as command-r, with three sliding-window layers for each full-attention
layer. The full-attention layers have no rotary embedding."""

from localinfer.graph.attention import sliding_layers, sliding_window
from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import ONE_NORM, DecoderSpec, build_decoder

PATTERN = 4


def build(g: Builder[X]) -> None:
    """Decoder with parallel branches; the logits are multiplied by `logit_scale`."""
    g.use_layer_norm()
    full, local = AttentionSpec(None), AttentionSpec(g.rope("interleaved"), sliding_window(g))
    specs = sliding_layers(g, PATTERN).choose(local, full)
    spec = DecoderSpec(
        attention=specs, parallel=True, pre_norms=ONE_NORM, logit_scale=g.hparams.positive("logit_scale", 1.0)
    )
    build_decoder(g, spec)

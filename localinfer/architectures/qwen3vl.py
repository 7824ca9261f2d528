"""The text model of Qwen3-VL (Alibaba, 2025): as qwen3, with interleaved M-RoPE and DeepStack for rows of images."""

from localinfer.graph.attention import mrope, with_window
from localinfer.graph.builder import AttentionSpec, Builder, Router, X
from localinfer.graph.decoder import DecoderSpec, build_decoder


def build(g: Builder[X], router: Router | None = None) -> None:
    """As Llama, with normalized heads."""
    spec = AttentionSpec(mrope(g, interleaved=True), head_norm="before_rope")
    attention, n_deepstack = with_window(g, spec), g.properties.n_deepstack
    build_decoder(g, DecoderSpec(attention=attention, router=router, n_deepstack=n_deepstack))

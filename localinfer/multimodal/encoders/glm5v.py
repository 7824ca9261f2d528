"""GLM-5-Next (Z.ai, 2026): as GLM-4.1V, without learned positions, with normalized heads and limited gates."""

from localinfer.graph.ops.buffers import Buffer
from localinfer.multimodal.encoder_graph.encoder_builder import EncoderBuilder
from localinfer.multimodal.encoder_graph.transformer import activation
from localinfer.multimodal.encoders import glm4v

ARCHITECTURES = ("glm5-next",)
arrange = glm4v.arrange


def build(g: EncoderBuilder) -> Buffer:
    """Gates are limited before SiLU, and so are the values that they are multiplied with."""
    if activation(g) != "silu":
        raise g.f.error("clip.use_silu", "is not true")
    return glm4v.build_squares(g, f"silu_of_limited:{g.hparams.positive('swiglu_clamp')}")

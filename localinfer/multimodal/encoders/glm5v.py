"""GLM-5-Next (Z.ai, 2026): as GLM-4.1V, without learned positions, with normalized heads and limited gates."""

from localinfer.graph.ops.buffers import Buffer
from localinfer.multimodal.encoder_graph.encoder_builder import EncoderBuilder
from localinfer.multimodal.encoder_graph.transformer import activation
from localinfer.multimodal.encoders import glm4v
from localinfer.multimodal.videos import frame_sizes, sampling, video_text
from localinfer.multimodal.videos.video_family import VideoFamily

ARCHITECTURES = ("glm5-next",)
arrange = glm4v.arrange
VIDEO = VideoFamily(
    sampling.glm5v_frames, frame_sizes.glm5v_sizes, video_text.glm5v_text, fps=2, most=2048, frames=2, tokens=(16, 0),
    padded=True,
)  # fmt: skip


def build(g: EncoderBuilder) -> Buffer:
    """Gates are limited before SiLU, and so are the values that they are multiplied with."""
    if activation(g) != "silu":
        raise g.f.error("clip.use_silu", "is not true")
    return glm4v.build_squares(g, f"silu_of_limited:{g.hparams.positive('swiglu_clamp')}")

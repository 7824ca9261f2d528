"""Qwen2-VL (Wang et al., 2024): images of any size, rotary embeddings in two dimensions, squares of 2 x 2 patches."""

from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.properties.attention import AttentionSpec
from localinfer.multimodal.encoder_graph import positions, row_order
from localinfer.multimodal.encoder_graph.encoder_builder import FRAMES, EncoderBuilder
from localinfer.multimodal.encoder_graph.transformer import activation, transform, two_layers
from localinfer.multimodal.encoders.arrangement import surround
from localinfer.multimodal.videos import frame_sizes, sampling, video_text
from localinfer.multimodal.videos.video_family import VideoFamily

ARCHITECTURES = ("qwen2vl",)
GRID_POSITIONS = True
arrange = surround("<|vision_start|>", "<|vision_end|>")
VIDEO = VideoFamily(
    sampling.qwen2_frames, frame_sizes.qwen2_sizes, video_text.qwen2_text, fps=2, most=768, frames=2, tokens=(128, 768)
)


def build(g: EncoderBuilder) -> Buffer:
    """A transformer on patches in the order of squares, which two layers make one row each."""
    g.use_layer_norm()
    squares = row_order.blocks(g.grid, g.merge_size("spatial_merge_size", 2))
    x = g.embed_patches(order=squares, convolutions=FRAMES)
    angles = positions.half_and_half_angles(g.grid, g.heads.key)[squares.reshape(-1)]
    transform(g, x, activation(g), AttentionSpec(g.attention.rotation("halves", angles)))
    x = g.gather(g.norm(x, "v.post_ln"), row_order.consecutive(squares.shape))
    return two_layers(g, x, "mm.0", "mm.2", "gelu_erf")

"""Qwen2.5-VL (Bai et al., 2025): as Qwen2-VL, with RMSNorm, gated networks, and attention to windows in most layers."""

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
WINDOW = 112  # pixels on each side
arrange = surround("<|vision_start|>", "<|vision_end|>")
VIDEO = VideoFamily(
    sampling.qwen2_frames, frame_sizes.qwen2_sizes, video_text.qwen25_text, fps=2, most=768, frames=2, tokens=(128, 768)
)


def build(g: EncoderBuilder) -> Buffer:
    """A transformer on squares of patches in the order of windows; the last layer of each group attends to all."""
    merge, every = g.merge_size("spatial_merge_size", 2), g.hparams.count("n_wa_pattern")
    squares, size = row_order.blocks(g.grid, merge), g.hparams.count("window_size", WINDOW)
    per_window = max(1, size // g.patch_size // merge)
    order, lengths = row_order.windows((g.grid[0] // merge, g.grid[1] // merge), per_window)
    squares, window = squares[order], g.attention.add_windows(lengths * merge**2)
    x = g.embed_patches(order=squares, convolutions=FRAMES)
    angles = positions.half_and_half_angles(g.grid, g.heads.key)[squares.reshape(-1)]
    windows = [0 if (number + 1) % every == 0 else window for number in range(g.block_count)]
    transform(g, x, activation(g), AttentionSpec(g.attention.rotation("halves", angles)), windows=windows)
    rows = row_order.consecutive(squares.shape)[row_order.inverse(order)]
    return two_layers(g, g.gather(g.norm(x, "v.post_ln"), rows), "mm.0", "mm.2", "gelu_erf")

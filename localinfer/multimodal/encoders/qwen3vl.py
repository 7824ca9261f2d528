"""Qwen3-VL (Qwen team, 2025): learned and rotary positions, and rows for several layers of the language model
(DeepStack; Meng et al., 2024)."""

from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.properties.attention import AttentionSpec
from localinfer.multimodal.encoder_graph import learned_positions, positions, row_order
from localinfer.multimodal.encoder_graph.encoder_builder import FRAMES, EncoderBuilder
from localinfer.multimodal.encoder_graph.transformer import activation, transform, two_layers
from localinfer.multimodal.encoders.arrangement import surround
from localinfer.multimodal.videos import frame_sizes, sampling, video_text
from localinfer.multimodal.videos.video_family import VideoFamily

ARCHITECTURES = ("qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe", "qwen4exp")
GRID_POSITIONS = True
arrange = surround("<|vision_start|>", "<|vision_end|>")
VIDEO = VideoFamily(
    sampling.qwen3_frames, frame_sizes.qwen3_sizes, video_text.qwen3_text, fps=2, most=768, frames=2, tokens=(0, 768),
    fewest_pixels=4096,
)  # fmt: skip


def build(g: EncoderBuilder) -> Buffer:
    """As Qwen2-VL. The output of some layers is projected, too, with a network of its own for each."""
    g.use_layer_norm()
    squares = row_order.blocks(g.grid, g.merge_size("spatial_merge_size", 2))
    rows = row_order.consecutive(squares.shape)
    learned = g.resample(learned_positions.of_square_grid(g), "linear", align_corners=True)
    x = g.embed_patches(learned, order=squares, convolutions=FRAMES)
    angles = positions.half_and_half_angles(g.grid, g.heads.key)[squares.reshape(-1)]
    flags = g.hparams.flags("is_deepstack_layers", g.block_count, lambda _: False)
    deepstack = [number for number, flag in enumerate(flags) if flag]
    n, count = g.output_length, g.rows(len(squares))
    output = g.graph.buffer(n * (1 + len(deepstack)), count)

    def project(number: int, x: Buffer) -> None:
        """Project the output of a layer, if it is one of DeepStack's."""
        if number in deepstack:
            name = f"v.deepstack.{number}"
            merged = g.norm(g.gather(x, rows), f"{name}.norm")
            added = two_layers(g, merged, f"{name}.fc1", f"{name}.fc2", "gelu_erf", n_out=n)
            g.copy_columns(added, output, n * (1 + deepstack.index(number)))

    transform(g, x, activation(g), AttentionSpec(g.attention.rotation("halves", angles)), on_layer=project)
    x = g.gather(g.norm(x, "v.post_ln"), rows)
    g.copy_columns(two_layers(g, x, "mm.0", "mm.2", "gelu_erf", n_out=n), output, 0)
    return output

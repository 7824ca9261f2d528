"""GLM-4.1V (Zhipu AI, 2025): learned and rotary positions, a convolution that merges squares of 2 x 2 patches."""

from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.properties.attention import AttentionSpec
from localinfer.multimodal.encoder_graph import learned_positions, positions, row_order
from localinfer.multimodal.encoder_graph.encoder_builder import FRAMES, EncoderBuilder
from localinfer.multimodal.encoder_graph.matrices import n_rows_of, product_of_padded
from localinfer.multimodal.encoder_graph.transformer import activation, hidden_units, transform
from localinfer.multimodal.encoders.arrangement import surround
from localinfer.multimodal.videos import frame_sizes, sampling, video_text
from localinfer.multimodal.videos.video_family import VideoFamily

ARCHITECTURES = ("glm4", "glm4moe", "glm4v", "glm4vmoe")
GRID_POSITIONS = True
arrange = surround("<|begin_of_image|>", "<|end_of_image|>")
VIDEO = VideoFamily(
    sampling.glm4v_frames, frame_sizes.glm4v_sizes, video_text.glm4v_text, fps=2, most=600, frames=2,
    fewest_pixels=12_544,
)  # fmt: skip


def build(g: EncoderBuilder) -> Buffer:
    """A transformer with RMSNorm; a convolution, a matrix with LayerNorm, and a gated network."""
    return build_squares(g, activation(g))


def build_squares(g: EncoderBuilder, act: str) -> Buffer:
    """Build the encoder with an activation of its gated networks."""
    size = g.merge_size("spatial_merge_size", 2)
    squares, n = row_order.blocks(g.grid, size), g.embedding_length
    x = g.embed_patches(order=squares, convolutions=FRAMES)
    if g.tensors.has("v.norm_embd.weight"):
        x = g.norm(x, "v.norm_embd")
    if learned_positions.has_positions(g):
        learned = g.resample(learned_positions.of_square_grid(g), "cubic")
        g.add(x, g.constants.rows(learned[squares.reshape(-1)]))
    angles = positions.half_and_half_angles(g.grid, g.heads.key)[squares.reshape(-1)]
    transform(g, x, act, AttentionSpec(g.attention.rotation("halves", angles)))
    x = g.gather(g.norm(x, "v.post_ln"), row_order.consecutive(squares.shape))
    n_out = n_rows_of(g, "mm.patch_merger")
    weight = g.tensors.columns_by_patch("mm.patch_merger.weight", n_out, n, size)
    x = g.product(x, weight, bias=g.tensors.bias("mm.patch_merger", n_out))
    x = g.default_layer_norm(g.matmul(x, "mm.model.fc", n_rows_of(g, "mm.model.fc")), "mm.post_norm")
    x = g.gate(x, None, "gelu_erf")
    hidden = hidden_units(g, x, ["mm.up", "mm.gate"], "mm.down", act)
    return product_of_padded(g, hidden, "mm.down", n_rows_of(g, "mm.up"), g.output_length)

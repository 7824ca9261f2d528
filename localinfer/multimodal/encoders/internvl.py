"""InternVL (Chen et al., 2023): tiles of one size with a class row, layer scale, pixel shuffle."""

from localinfer.graph.ops.buffers import Buffer
from localinfer.multimodal.encoder_graph import learned_positions, row_order
from localinfer.multimodal.encoder_graph.encoder_builder import EncoderBuilder
from localinfer.multimodal.encoder_graph.transformer import activation, transform, two_layers
from localinfer.multimodal.encoders.arrangement import enclose
from localinfer.multimodal.videos import frame_sizes, sampling, video_text
from localinfer.multimodal.videos.video_family import VideoFamily

ARCHITECTURES = ()
CLASS_ROWS = True
arrange = enclose("<img>", "</img>", overview_last=True)
VIDEO = VideoFamily(sampling.internvl_frames, frame_sizes.tile_size, video_text.internvl_text, fps=1, most=32)
RMS_NORM_LENGTH, RMS_NORM_LAYERS = 3200, 45  # of the encoder with RMSNorm, InternViT-6B


def build(g: EncoderBuilder) -> Buffer:
    """A transformer; the patches of each square side by side, a norm, two layers."""
    if (g.embedding_length, g.block_count) != (RMS_NORM_LENGTH, RMS_NORM_LAYERS):
        g.use_layer_norm()
    size = g.merge_size("projector.scale_factor", 2)
    x = g.embed_patches(learned_positions.of_all_rows(g))
    transform(g, x, activation(g, "gelu_erf"))
    if g.tensors.has("v.post_ln.weight"):
        x = g.norm(x, "v.post_ln")
    x = g.gather(x, row_order.blocks(g.grid, size) + (g.graph.batch - g.n_patches))
    return two_layers(g, g.default_layer_norm(x, "mm.model.mlp.0"), "mm.model.mlp.1", "mm.model.mlp.3", "gelu_erf")

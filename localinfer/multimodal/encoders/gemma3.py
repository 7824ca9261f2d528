"""Gemma 3 (Google, 2025): SigLIP (Zhai et al., 2023) on images of one size, average pooling, one matrix."""

from localinfer.gguf.reader import GGUF
from localinfer.graph.ops.buffers import Buffer
from localinfer.multimodal.encoder_graph import learned_positions, row_order
from localinfer.multimodal.encoder_graph.encoder_builder import EncoderBuilder
from localinfer.multimodal.encoder_graph.transformer import activation, transform
from localinfer.multimodal.encoders.arrangement import surround

ARCHITECTURES = ("gemma3",)
arrange = surround("\n\n<start_of_image>", "<end_of_image>\n\n")


def is_bidirectional(model: GGUF) -> bool:  # noqa: ARG001 of all models
    """Return whether the rows of an image attend to each other."""
    return True


def build(g: EncoderBuilder) -> Buffer:
    """SigLIP, then the mean of each square of patches, RMSNorm and a matrix that the file has transposed."""
    g.use_layer_norm()
    size = g.merge_size("projector.scale_factor", 4)
    x = g.embed_patches(learned_positions.of_all_rows(g))
    transform(g, x, activation(g))
    x = g.average(g.norm(x, "v.post_ln"), row_order.blocks(g.grid, size))
    x = g.norm_groups(x, x.n, "mm.soft_emb_norm.weight")
    return g.product(x, g.tensors.transposed("mm.input_projection.weight", x.n, g.output_length))

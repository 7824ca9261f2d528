"""LFM2-VL (Liquid AI, 2025): SigLIP 2 (Tschannen et al., 2025) on images or tiles of any size, pixel shuffle."""

from collections.abc import Sequence

from localinfer.graph.ops.buffers import Buffer
from localinfer.multimodal.encoder_graph import learned_positions, row_order
from localinfer.multimodal.encoder_graph.encoder_builder import EncoderBuilder
from localinfer.multimodal.encoder_graph.transformer import activation, transform, two_layers
from localinfer.multimodal.encoders.arrangement import Part, View

ARCHITECTURES = ("lfm2", "lfm2moe")


def build(g: EncoderBuilder) -> Buffer:
    """SigLIP with interpolated positions; the patches of each square side by side, a norm if there is one, two
    layers."""
    g.use_layer_norm()
    size = g.merge_size("projector.scale_factor", 2)
    x = g.embed_patches(g.resample(learned_positions.of_square_grid(g), "linear", antialias=True))
    transform(g, x, activation(g))
    x = g.gather(g.norm(x, "v.post_ln"), row_order.blocks(g.grid, size))
    if g.tensors.has("mm.input_norm.weight"):
        x = g.default_layer_norm(x, "mm.input_norm")
    return two_layers(g, x, "mm.1", "mm.2", "gelu_erf")


def arrange(views: Sequence[View]) -> list[Part]:
    """Tiles with their place, then the whole image; an image that is not divided has only the tokens around it."""
    parts: list[Part] = ["<|image_start|>"]
    for view in sorted(views, key=lambda view: view.is_overview):
        row, column = view.tile
        if len(views) > 1:
            parts.append("<|img_thumbnail|>" if view.is_overview else f"<|img_row_{row}_col_{column}|>")
        parts.append(view.rows)
    return [*parts, "<|image_end|>"]

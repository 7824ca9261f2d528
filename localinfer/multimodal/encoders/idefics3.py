"""Idefics3 (Laurençon et al., 2024) and SmolVLM: SigLIP on tiles, pixel shuffle, one matrix."""

from collections.abc import Sequence

from localinfer.graph.ops.buffers import Buffer
from localinfer.multimodal.encoder_graph import learned_positions, row_order
from localinfer.multimodal.encoder_graph.encoder_builder import EncoderBuilder
from localinfer.multimodal.encoder_graph.transformer import activation, transform
from localinfer.multimodal.encoders.arrangement import Part, View
from localinfer.multimodal.videos import frame_sizes, sampling, video_text
from localinfer.multimodal.videos.video_family import VideoFamily

ARCHITECTURES = ("llama", "smollm3")
AROUND, WHOLE = "<fake_token_around_image>", "<global-img>"
VIDEO = VideoFamily(sampling.smolvlm_frames, frame_sizes.smolvlm_sizes, video_text.smolvlm_text, fps=1, most=64)


def build(g: EncoderBuilder) -> Buffer:
    """SigLIP, then the patches of each square side by side, and a matrix."""
    g.use_layer_norm()
    size = g.merge_size("projector.scale_factor", 1)
    x = g.embed_patches(learned_positions.of_all_rows(g))
    transform(g, x, activation(g))
    x = g.gather(g.norm(x, "v.post_ln"), row_order.blocks(g.grid, size))
    return g.matmul(x, "mm.model.fc", g.output_length)


def arrange(views: Sequence[View]) -> list[Part]:
    """The tiles row by row, each with its place, then the whole image."""
    parts: list[Part] = []
    tiles = [view for view in views if not view.is_overview]
    for number, view in enumerate(tiles):
        row, column = view.tile
        parts += [f"{AROUND}<row_{row}_col_{column}>", view.rows]
        if number + 1 == len(tiles) or tiles[number + 1].tile[0] != row:
            parts.append("\n")
    for view in views:
        if view.is_overview:
            parts += [f"{chr(10) if tiles else ''}{AROUND}{WHOLE}", view.rows, AROUND]
    return parts

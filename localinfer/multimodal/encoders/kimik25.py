"""Kimi K2.5 (Moonshot AI, 2026): the encoder of Kimi-VL, whose files have the pairs of columns before those of rows."""

from localinfer.graph.ops.buffers import Buffer
from localinfer.multimodal.encoder_graph import learned_positions, positions
from localinfer.multimodal.encoder_graph.encoder_builder import EncoderBuilder
from localinfer.multimodal.encoders import kimivl
from localinfer.multimodal.encoders.arrangement import surround

ARCHITECTURES = ("deepseek2",)
arrange = surround("<|media_begin|>image<|media_content|>", "<|media_end|>")


def build(g: EncoderBuilder) -> Buffer:
    """As Kimi-VL, with positions of a grid that need not be a square."""
    angles = positions.half_and_half_angles(g.grid, g.heads.key, columns_first=True)
    return kimivl.build_squares(g, learned_positions.of_grid(g), angles)

"""Qwen2.5-Omni (Xu et al., 2025): the encoder of images is that of Qwen2.5-VL."""

from localinfer.multimodal.encoders import qwen2_5vl

ARCHITECTURES, GRID_POSITIONS = qwen2_5vl.ARCHITECTURES, qwen2_5vl.GRID_POSITIONS
build, arrange = qwen2_5vl.build, qwen2_5vl.arrange

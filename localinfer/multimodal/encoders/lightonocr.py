"""LightOnOCR (LightOn, 2025): Pixtral's encoder with a patch merger, without tokens at the end of rows."""

from localinfer.multimodal.encoders.arrangement import surround
from localinfer.multimodal.encoders.pixtral import build

__all__ = ["ARCHITECTURES", "arrange", "build"]

ARCHITECTURES = ("qwen3",)
arrange = surround("<|im_start|>", "<|im_end|>")

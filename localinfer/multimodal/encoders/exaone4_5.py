"""EXAONE 4.5 (LG, 2026): the encoder of Qwen2.5-VL, whose heads share keys and values. The text model has positions in
one dimension."""

from localinfer.multimodal.encoders import qwen2_5vl
from localinfer.multimodal.encoders.arrangement import surround

ARCHITECTURES = ("exaone4",)
arrange = surround("<vision>", "</vision>")
build = qwen2_5vl.build

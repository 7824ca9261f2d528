"""Qwen2.5-Omni (Xu et al., 2025): Whisper's encoder on chunks of 2 s, means of two rows, one matrix."""

import numpy as np

from localinfer.graph.ops.buffers import Buffer
from localinfer.multimodal.sounds.arrangement import enclose
from localinfer.multimodal.sounds.encoders import whisper
from localinfer.multimodal.sounds.framing import Framing, neighbours
from localinfer.multimodal.sounds.mel import MelProcessor
from localinfer.multimodal.sounds.sound_builder import SoundBuilder

SoundProcessor = MelProcessor
ARCHITECTURES = ("qwen2vl",)
CHUNK = 200  # frames
FRAMING = Framing(chunk=CHUNK, least=3)
prepare, arrange = neighbours, enclose("<|audio_bos|>", "<|audio_eos|>")


def build(g: SoundBuilder) -> Buffer:
    """Whisper, whose rows attend to those of their chunk, average pooling, a norm and a matrix."""
    counts = [g.framing.positions(length) for length in g.lengths]
    x = whisper.encode(g, window=g.attention.add_windows(np.array(counts)))
    pooled = g.average_pairs(x, [x.rows.capacity])
    return g.matmul(g.norm(pooled, "a.post_ln"), "mm.a.fc", g.output_length)

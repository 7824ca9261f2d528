"""Qwen2-Audio (Chu et al., 2024): Whisper's encoder, means of two rows, one matrix."""

from localinfer.graph.ops.buffers import Buffer
from localinfer.multimodal.sounds.arrangement import enclose
from localinfer.multimodal.sounds.encoders import whisper
from localinfer.multimodal.sounds.framing import Framing, neighbours_with_silence
from localinfer.multimodal.sounds.mel import MelProcessor
from localinfer.multimodal.sounds.sound_builder import SoundBuilder

SoundProcessor = MelProcessor
ARCHITECTURES = ("qwen2",)
FRAMING = Framing(unit=2, least=3)
prepare, arrange = neighbours_with_silence, enclose("<|audio_bos|>", "<|audio_eos|>")


def build(g: SoundBuilder) -> Buffer:
    """Whisper, average pooling, a norm and a matrix."""
    x = whisper.encode(g)
    pooled = g.average_pairs(x, [x.rows.capacity])
    return g.matmul(g.norm(pooled, "a.post_ln"), "mm.a.fc", g.output_length)

"""Voxtral (Liu et al., 2025): Whisper's encoder on chunks of 30 s; 4 rows become one, and two matrices project it."""

from localinfer.graph.ops.buffers import Buffer
from localinfer.multimodal.encoder_graph.transformer import two_layers
from localinfer.multimodal.sounds.arrangement import enclose
from localinfer.multimodal.sounds.encoders import whisper
from localinfer.multimodal.sounds.framing import CHUNK_FRAMES, Framing, neighbours
from localinfer.multimodal.sounds.mel import MelProcessor
from localinfer.multimodal.sounds.sound_builder import ACTIVATION, SoundBuilder

SoundProcessor = MelProcessor
ARCHITECTURES = ("llama",)
FRAMING = Framing(unit=CHUNK_FRAMES)
prepare, arrange = neighbours, enclose("[BEGIN_AUDIO]", "")


def build(g: SoundBuilder) -> Buffer:
    """Whisper, stacked rows, a network with one hidden layer."""
    x = g.stack(g.norm(whisper.encode(g), "a.post_ln"), g.stack_size)
    return two_layers(g, x, "mm.a.mlp.1", "mm.a.mlp.2", ACTIVATION)

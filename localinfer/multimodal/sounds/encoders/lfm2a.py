"""LFM2-Audio (Liquid AI, 2025): Fast Conformer, and two matrices behind a norm."""

from localinfer.graph.ops.buffers import Buffer
from localinfer.multimodal.encoder_graph.transformer import two_layers
from localinfer.multimodal.sounds.arrangement import enclose
from localinfer.multimodal.sounds.encoders import conformer
from localinfer.multimodal.sounds.framing import ALL_FRAMES, Framing
from localinfer.multimodal.sounds.nemo_mel import NemoProcessor
from localinfer.multimodal.sounds.sound_builder import ACTIVATION, SoundBuilder

SoundProcessor = NemoProcessor
ARCHITECTURES = ("lfm2",)
FRAMING = Framing(window=ALL_FRAMES, halvings=3)
OUTPUT_TENSORS = ("a.position_embd.weight", "a.position_embd_norm.weight", "a.embd_to_logits.weight")  # of speech
prepare, arrange = conformer.prepare, enclose("", "")


def build(g: SoundBuilder) -> Buffer:
    """Subsampling, the layers, a norm and a network with one hidden layer."""
    g.tensors.accept(*OUTPUT_TENSORS)
    x = conformer.subsample(g)
    conformer.transform(g, x)
    return two_layers(g, g.norm(x, "mm.a.mlp.0"), "mm.a.mlp.1", "mm.a.mlp.3", ACTIVATION)

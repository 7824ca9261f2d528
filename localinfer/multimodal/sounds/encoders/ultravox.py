"""Ultravox (Fixie, 2024): Whisper's encoder; 8 rows become one, and a network with norms projects it."""

from localinfer.graph.ops.buffers import Buffer
from localinfer.multimodal.sounds.arrangement import enclose
from localinfer.multimodal.sounds.encoders import whisper
from localinfer.multimodal.sounds.framing import Framing, neighbours
from localinfer.multimodal.sounds.mel import MelProcessor
from localinfer.multimodal.sounds.sound_builder import SoundBuilder

SoundProcessor = MelProcessor
ARCHITECTURES = ()
FRAMING = Framing()
EPSILON = 1e-6
prepare, arrange = neighbours, enclose("", "")


def build(g: SoundBuilder) -> Buffer:
    """Whisper, stacked rows, RMSNorm, SwiGLU whose second half is the gate, RMSNorm, a matrix."""
    x = g.stack(g.norm(whisper.encode(g), "a.post_ln"), g.stack_size)
    x = g.norm_groups(x, x.n, "mm.a.norm_pre.weight", eps=EPSILON)
    n = g.tensors.n_rows("mm.a.mlp.1") // 2
    up, gate = g.slices(x, "mm.a.mlp.1", n, n)
    hidden = g.gate(gate, up, "silu")
    return g.matmul(g.norm_groups(hidden, n, "mm.a.norm_mid.weight", eps=EPSILON), "mm.a.mlp.2", g.output_length)

"""Gemma 4 12B (Google, 2026), which has no encoder of sounds: a norm and a matrix on 40 ms of samples."""

import numpy as np

from localinfer.errors import UnsupportedError
from localinfer.graph.ops.buffers import Buffer
from localinfer.multimodal.encoder_graph.encoder_builder import PatchInput
from localinfer.multimodal.encoder_graph.row_order import consecutive
from localinfer.multimodal.sounds.arrangement import enclose
from localinfer.multimodal.sounds.framing import Floats, Framing
from localinfer.multimodal.sounds.raw_frames import FRAME, RawFrames
from localinfer.multimodal.sounds.sound_builder import SoundBuilder

SoundProcessor = RawFrames
ARCHITECTURES, HAS_LAYERS = ("gemma4",), False
FRAMING = Framing(window=750, halvings=0)  # 30 s; frames do not depend on each other
EPSILON = 1e-6  # some files have another number, which is wrong
arrange = enclose("<|audio>", "<audio|>")


def build(g: SoundBuilder) -> Buffer:
    g.hparams.accept("num_mel_bins")
    if g.embedding_length != FRAME:
        raise g.hparams.error("embedding_length", f"is {g.embedding_length}; it must be {FRAME}", UnsupportedError)
    frames = g.graph.buffer(FRAME)
    g.input = PatchInput(frames, 0, consecutive((g.n_frames,)), frames, np.zeros((0, FRAME), np.float32))
    return g.matmul(g.norm_groups(frames, FRAME, eps=EPSILON), "mm.a.input_projection", g.output_length)


def prepare(features: Floats, lengths: list[int]) -> Floats:
    """Return the frames of the sound, (frames, samples)."""
    return features[: sum(lengths)]

"""The encoder of Whisper (Radford et al., 2022), which most sound models begin with."""

import numpy as np

from localinfer.graph.ops.buffers import Buffer
from localinfer.multimodal.encoder_graph.transformer import transform
from localinfer.multimodal.sounds.framing import TAPS, strided_neighbours
from localinfer.multimodal.sounds.sound_builder import ACTIVATION, SoundBuilder


def encode(g: SoundBuilder, window: int = 0) -> Buffer:
    """Return the residual stream after the last layer: two convolutions over time, the second of stride 2, positions,
    and the layers of a transformer, whose rows attend to those of a `window` that is set, or to all."""
    g.use_layer_norm()
    n = g.embedding_length
    x = g.enter("a.conv1d.1", n, g.n_bands, (TAPS,), sum(g.lengths))
    x = g.convolve(x, "a.conv1d.2", n, (TAPS,), strided_neighbours(g.lengths))
    counts = [g.framing.positions(length) for length in g.lengths]
    table = g.tensors.positions(max(counts), n)
    g.add_constant(x, np.concatenate([table[:count] for count in counts]))
    transform(g, x, ACTIVATION, windows=[window] * g.block_count)
    return x

"""The rows of an encoder by the naive forward pass, in float64 and without kernels."""

import numpy as np
from numpy.typing import NDArray

from localinfer.graph.ops.buffers import Buffer
from localinfer.multimodal.encoder_graph.compiled_encoder import write_constants, write_input
from localinfer.multimodal.encoder_graph.encoder_builder import EncoderBuilder
from localinfer.multimodal.encoder_graph.encoder_tensors import Floats
from localinfer.naive.encoders.forward import forward


def naive_rows(g: EncoderBuilder, output: Buffer, patches: Floats) -> NDArray[np.floating]:
    """Return the output rows of an image or a sound, given its patches or frames as `CompiledEncoder.run` is."""
    g.graph.allocate()
    write_constants(g)
    write_input(g, patches)
    return forward(g.graph, output)

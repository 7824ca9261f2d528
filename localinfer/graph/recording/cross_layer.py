"""Activations that several layers use, beside the residual stream."""

from localinfer.graph.builder import AltUpStreams, Builder, CrossLayerOperations
from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.recording.altup import AltUpRecorder
from localinfer.graph.recording.model_graph import ModelGraph
from localinfer.kernels.signatures import COPY


class CrossLayerRecorder(CrossLayerOperations[Buffer]):
    """Records buffers that keep their contents from layer to layer."""

    def __init__(self, g: Builder[Buffer], model: ModelGraph) -> None:
        self._g, self._model, self._graph = g, model, model.graph

    def buffer(self, n: int) -> Buffer:
        self._model.has_cross_layer_inputs = True
        return self._graph.buffer(n)

    def copy(self, x: Buffer, to: Buffer) -> None:
        self._graph.op("copy", COPY, x.rows, chunks=(0, 8), x=x, x_n=x.n, x_first=0, n=x.n, y=to, y_n=to.n, y_first=0)

    def altup(self, x: Buffer, count: int) -> AltUpStreams[Buffer]:
        if self._model.adapters and self._model.adapters.directions:
            raise self._model.hparams.unsupported("altup.num_inputs", "a control vector with several residual streams")
        self._model.residual = None  # there are several
        return AltUpRecorder(self._g, self._graph, x, count)

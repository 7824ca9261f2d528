"""Activations that several layers use, beside the residual stream."""

from localinfer.graph.builder import AltUpStreams, Builder, CrossLayerOperations, HyperConnections
from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.recording.model_graph import ModelGraph
from localinfer.graph.recording.operations.altup import AltUpRecorder
from localinfer.graph.recording.residual_streams import average_streams, collapse_streams
from localinfer.kernels.signatures import ATTEND_STREAMS, COPY, MIX, WEIGH_STREAMS


class CrossLayerRecorder(CrossLayerOperations[Buffer]):
    """Records buffers that keep their contents from layer to layer."""

    def __init__(self, g: Builder[Buffer], model: ModelGraph) -> None:
        self._g, self._model, self._graph = g, model, model.graph

    def buffer(self, n: int) -> Buffer:
        self._model.has_cross_layer_inputs = True
        return self._graph.buffer(n)

    def copy(self, x: Buffer, to: Buffer, first: int = 0) -> None:
        self._graph.op(
            "copy", COPY, x.rows, chunks=(0, 8), x=x, x_n=x.n, x_first=0, n=x.n, y=to, y_n=to.n, y_first=first
        )

    def attend(self, x: Buffer, earlier: Buffer, count: int, name: str) -> Buffer:
        y = self._graph.buffer(x.n, x.rows)
        self._graph.need_scratch(4 * (count + 1))
        self._graph.op(
            name, ATTEND_STREAMS, x.rows, chunks=(0, 8), x=x, earlier=earlier, earlier_n=earlier.n, count=count,
            weight=self._g.tensors.vector(f"{name}.weight", x.n), n=x.n, eps=self._g.eps, y=y,
        )  # fmt: skip
        self._g.point(y, name)
        return y

    def streams(self, x: Buffer, count: int) -> Buffer:
        self._require_one_stream("hyper_connection.count")
        streams = self._g.per_head.repeat(x, count)
        self._model.streams = streams, count
        return streams

    def weigh_streams(self, logits: Buffer, name: str, shape: HyperConnections) -> None:
        tensors, n_scales = self._g.tensors, 1 if logits.n == shape.count else shape.n_scales
        self._graph.op(
            name, WEIGH_STREAMS, logits.rows, chunks=(0, 8), base=tensors.vector(f"{name}_base.weight", logits.n),
            scale=tensors.vector(f"{name}_scale.weight", n_scales), count=shape.count, n=logits.n, eps=shape.eps,
            magnitude=shape.magnitude, output_eps=shape.output_eps, iterations=shape.iterations, x=logits,
        )  # fmt: skip

    def collapse(self, x: Buffer, weights: Buffer | None, count: int) -> Buffer:
        if weights is None:
            return average_streams(self._graph, x, count)
        return collapse_streams(self._graph, x, weights, weights.n, count)

    def mix(self, x: Buffer, y: Buffer, weights: Buffer, count: int) -> None:
        self._graph.need_scratch(64 * count)
        self._graph.op(
            "mix", MIX, x.rows, chunks=(0, 8), y=y, weights=weights, n_weights=weights.n, count=count, n=y.n, x=x
        )

    def altup(self, x: Buffer, count: int) -> AltUpStreams[Buffer]:
        self._require_one_stream("altup.num_inputs")
        return AltUpRecorder(self._g, self._graph, x, count)

    def _require_one_stream(self, key: str) -> None:
        """Raise UnsupportedError for a control vector, whose stream is replaced by several."""
        if self._model.adapters and self._model.adapters.directions:
            raise self._model.hparams.unsupported(key, "a control vector with several residual streams")
        self._model.residual = None

"""Records what follows the last layer: the hidden states of the output tokens, the output layer, the MTP head."""

from localinfer.gguf.pooling import CLASSIFIER, DENSE_KEYS, DENSE_TENSORS
from localinfer.graph.builder import BlockFunction, Builder, MtpSpec, OutputOperations
from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.recording.model_graph import ModelGraph
from localinfer.kernels.signatures import GATHER_ROWS

OUTPUT_NORM = "output_norm"


class OutputRecorder(OutputOperations[Buffer]):
    """Records the output of a model."""

    def __init__(self, g: Builder[Buffer], model: ModelGraph) -> None:
        self._g, self._model = g, model

    def final_states(self, x: Buffer, norm: str = "") -> Buffer:
        g, model, graph = self._g, self._model, self._model.graph
        model.capture_input(g.block_count, x)
        model.output_start = len(graph.ops)
        picked = graph.buffer(x.n, graph.output_rows)
        graph.op("gather_outputs", GATHER_ROWS, picked.rows, x=x, numbers=model.output_indices, n=x.n, y=picked)
        states = g.norm(picked, norm) if norm else picked
        if norm and norm != OUTPUT_NORM:
            g.point(states, OUTPUT_NORM)
        model.final_states_buffer, model.final_states_end = states, len(graph.ops)
        g.tensors.accept(*CLASSIFIER, *DENSE_TENSORS)
        g.hparams.accept("pooling_type", "classifier.output_labels", "classifier.pooling_type", *DENSE_KEYS)
        return states

    def logits(self, x: Buffer, *, scale: float = 1.0, cap: float = 0.0, norm: str = "output_norm") -> None:
        g, model, states = self._g, self._model, self.final_states(x, norm)
        if not model.context.causal and not model.context.diffusion:
            return
        logits = g.matmul(states, model.output_matrix, model.n_vocab)
        if scale != 1.0 or cap:
            g.soft_cap(logits, scale, cap)
        g.point(logits, "logits")
        model.logits_buffer = logits

    def add_mtp_head(self, x: Buffer, apply_block: BlockFunction[Buffer], spec: MtpSpec) -> None:
        if self._model.context.draft_head and self._model.context.causal:
            from localinfer.graph.recording.operations.mtp import build_mtp_head

            self._model.draft_head = build_mtp_head(self._g, self._model, x, apply_block, spec)

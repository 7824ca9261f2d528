"""The compute graph of a model, with what the runtime uses of it: inputs, outputs, caches, ranges of ops."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import UnsupportedError
from localinfer.gguf.reader import GGUF, StringArray, Tensor
from localinfer.graph.cache.kv_cache import KVCache
from localinfer.graph.cache.recurrent_state import RecurrentState, StatePool
from localinfer.graph.cache.sequence_cache import SequenceCache
from localinfer.graph.ops.buffers import Buffer, Region, Rows
from localinfer.graph.ops.compute_graph import ComputeGraph
from localinfer.graph.properties.adapters import Adapters, LowRankChange
from localinfer.graph.properties.hyperparameters import Hyperparameters
from localinfer.graph.properties.model_properties import ModelProperties
from localinfer.graph.properties.repeated_layers import has_repeated_layers
from localinfer.graph.recording.attention import AttentionRecorder
from localinfer.graph.recording.context import Context
from localinfer.graph.recording.draft_head import DraftBlockHead, DraftHead, DraftHeadStates
from localinfer.graph.recording.media_input import MediaInput
from localinfer.graph.recording.modality_rows import ModalityRows
from localinfer.graph.recording.points import PointRecorder
from localinfer.graph.recording.residual_streams import average_streams
from localinfer.kernels.signatures import COPY

if TYPE_CHECKING:  # a log is made when a model is verified
    from localinfer.graph.recording.operation_log import OperationLog


class HookedGraph(NamedTuple):
    """What distinguishes a graph with hooks: the points that it is cut at (None: all), the model's graph without
    hooks, whose caches it uses, and the log of its operations. A graph with a log can stop after each operation."""

    points: Collection[str] | None
    caches_of: "ModelGraph | None" = None
    log: "OperationLog | None" = None


class ExpertLayer(NamedTuple):
    """The experts of a layer: before the op `first_op`, the router has chosen `used` of them for each token.

    `weights` are the tensors (count, n_out, n_in) that have a matrix of each expert. `chosen` are the chosen experts,
    int32 [tokens][used], and `predicted` those that the router of the layer `number` + 1 would choose for the same
    input.
    """

    number: int
    first_op: int
    used: int
    weights: Sequence[Tensor]
    chosen: Region
    predicted: Region | None = None

    @property
    def n_experts(self) -> int:
        """The number of experts."""
        return self.weights[0].shape[0]


class ModelGraph(ModelProperties):
    """The compute graph of a model. `localinfer.graph.recording.graph_builder` fills it."""

    def __init__(
        self, f: GGUF, hparams: Hyperparameters, graph: ComputeGraph, context: Context,
        adapters: Adapters | None = None, hooks: HookedGraph | None = None,
    ) -> None:  # fmt: skip
        super().__init__(f, hparams)
        self.graph, self.context = graph, context
        self.points = PointRecorder(graph, hooks.points if hooks else ())
        shared = hooks.caches_of if hooks else None
        self.attention = AttentionRecorder(graph, context, self, self.points)
        self.states = StatePool(graph)
        if shared is not None:
            self.attention.share_caches(shared.attention)
            graph.matrix_tables = dict(shared.graph.matrix_tables)
            self.states = shared.states
            self.states.restart()
        self.ids, self.output_indices = graph.region(4 * graph.batch), graph.region(4 * graph.outputs)
        self.block_starts: list[int] = []  # the first op of each layer
        self.block_prefix = ""  # of the names in the current layer
        self.layer_prefix = ""  # of the names of layers, which identify caches: that of a head beside another model
        self.expert_layers: list[ExpertLayer] = []
        self.output_start = 0
        self.decoder_start = 0  # the first op of the decoder of an encoder-decoder model
        # int32 [batch]: the segment of a text pair that each token belongs to, 0 or 1.
        self.token_types = graph.region(4 * graph.batch)
        self.type_count = 1
        # int32 [batch]: the adapter of the model that each token uses, or 0
        self.active_adapters = graph.region(4 * graph.batch if self.embedded_adapters else 0)
        self.adapters, self._adapted = adapters, set[str]()  # the tensors whose changes are recorded
        self.n_adapters = len(adapters.scales) if adapters else 0
        self.adapter_scales = graph.region(4 * graph.batch * self.n_adapters)  # float32 [batch][n_adapters]
        self.captured_inputs: Buffer | None = None  # the inputs of the layers of `capture_inputs`, concatenated
        self._captured_layers: Sequence[int] = ()
        self._n_captured = 0
        self.streams: tuple[Buffer, int] | None = None  # residual streams in place of one, and their number
        # Layers share more than the residual stream.
        self.has_cross_layer_inputs = has_repeated_layers(f) or self.embedded_adapters is not None
        self.residual: Buffer | None = None
        self.final_states_buffer: Buffer | None = None
        self.final_states_end = 0
        self.logits_buffer: Buffer | None = None
        self.draft_head: DraftHead | DraftBlockHead | None = None
        self.media_input: MediaInput | None = None
        if context.media:
            self.media_input = MediaInput(graph, self.embedding_length, self.n_deepstack)
        self.media_token = 0  # the id that media rows have, for what is looked up beside their embeddings
        self.modality_rows: ModalityRows | None = None  # of an architecture that distinguishes them

    def sequence_caches(self) -> Sequence[SequenceCache]:
        """Return new, empty caches for a sequence."""
        kv_caches = [KVCache(ring) for ring in self.attention.rings.values()]
        states = [RecurrentState(self.states)] if self.states.layers else []
        head_states = [DraftHeadStates(self.draft_head)] if isinstance(self.draft_head, DraftHead) else []
        return [*kv_caches, *states, *head_states]

    @property
    def is_encoding(self) -> bool:
        """Whether the next op belongs to the encoder of an encoder-decoder model."""
        return self.context.encoder_decoder and not self.decoder_start

    @property
    def cache_bytes(self) -> int:
        """The memory of the caches of all sequences."""
        return sum(ring.nbytes for ring in self.attention.rings.values()) + self.states.nbytes

    @property
    def draft_head_shares_keys(self) -> bool:
        """Whether the draft head attends to keys and values of the model instead of its own; all draft tokens then have
        the position of the first one."""
        return isinstance(self.draft_head, DraftHead) and self.draft_head.shares_keys

    @property
    def draft_block(self) -> DraftBlockHead | None:
        """The draft head, if it drafts a block of tokens at once; None if it drafts one token at a time."""
        return self.draft_head if isinstance(self.draft_head, DraftBlockHead) else None

    @property
    def n_vocab(self) -> int:
        """The number of tokens in the vocabulary, which is the number of rows of the embedding. Without a vocabulary in
        the file, the number of rows."""
        tokens, name = self.f.metadata.get("tokenizer.ggml.tokens"), "token_embd.weight"
        if isinstance(tokens, StringArray):
            return len(tokens)
        return self.f.tensors[name].shape[0] if name in self.f.tensors else 0

    @property
    def output_matrix(self) -> str:
        """The name of the output layer's matrix."""
        return "output" if self.tensors.has("output.weight") else "token_embd"

    def start_block(self, number: int, prefix: str) -> None:
        """Note that the next op is the first one of a layer, in which names have this prefix."""
        self.block_starts.append(len(self.graph.ops))
        self.block_prefix = prefix
        self.capture_input(number, self.residual)

    def block_ops(self, number: int) -> tuple[int, int]:
        """Return the range of ops of a layer: first and end."""
        ends = [*self.block_starts[1:], self.output_start]
        return self.block_starts[number], ends[number]

    @property
    def output_ops(self) -> tuple[int, int]:
        """The range of ops of the output layer: first and end."""
        return self.output_start, self.draft_head.start_op if self.draft_head else len(self.graph.ops)

    def low_rank(self, name: str) -> LowRankChange | None:
        """Return what adapters change in a tensor, or None. The caller records it."""
        name = self.f.tensors[name].name if name in self.f.tensors else name
        self._adapted.add(name)
        return self.adapters.low_rank(name) if self.adapters else None

    def stacked_a(self, changes: Sequence[LowRankChange]) -> Tensor:
        """Return the first matrices of the changes of products with the same input, one after another."""
        assert self.adapters
        return self.adapters.stacked_a(changes)

    def set_adapter_scales(self, first: int, count: int, scales: Sequence[float]) -> None:
        """Set the scales of the LoRA adapters for `count` tokens of the batch, from token `first` on."""
        if self.n_adapters:
            self.adapter_scales.view(np.float32).reshape(-1, self.n_adapters)[first : first + count] = scales

    def with_substitutes(self, ids: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return tokens with the substitutes of control tokens, whose embeddings these have."""
        return self.embedded_adapters.substitutes[ids] if self.embedded_adapters else ids

    def set_active_adapters(self, first: int, active: NDArray[np.int32] | None) -> None:
        """Set which adapters of the model the tokens of the batch use, from token `first` on. Without adapters, it does
        nothing."""
        if active is not None:
            self.active_adapters.view(np.int32)[first : first + len(active)] = active

    def token_numbers(self, rows: Rows) -> Region | None:
        """Return the memory that has the number of the token of each row; None if the rows are those of all tokens."""
        if rows is self.graph.output_rows:
            return self.output_indices
        return self.modality_rows.token_numbers(rows) if self.modality_rows else None

    def capture_inputs(self, blocks: Sequence[int]) -> None:
        """Store the inputs of these layers until the end of the graph, for a draft head. The number after the last
        layer stands for its output. Call it before the first layer."""
        self._captured_layers, self.captured_inputs = blocks, self.graph.buffer(len(blocks) * self.embedding_length)

    def capture_input(self, number: int, x: Buffer | None) -> None:
        """Record the copy of a layer's input, if it is one of `capture_inputs`: of the mean of several streams."""
        if number in self._captured_layers and self.streams:
            x = average_streams(self.graph, *self.streams)
        for index, layer in enumerate(self._captured_layers):
            if layer == number and x and self.captured_inputs:
                self._n_captured += 1
                self.graph.op(
                    "input", COPY, x.rows, chunks=(0, 8), x=x, x_n=x.n, x_first=0, n=x.n, y=self.captured_inputs,
                    y_n=self.captured_inputs.n, y_first=index * x.n,
                )  # fmt: skip

    def require_captured_inputs(self) -> None:
        """Raise UnsupportedError unless the inputs of all layers of `capture_inputs` have been captured. A model with
        alternating updates (Gemma 3n) records none: each of its layers computes one of several residual streams."""
        if self._n_captured != len(self._captured_layers):
            name = self.f.get("general.architecture", str)
            what = f"{name} has several residual streams, which draft heads in files of their own cannot read"
            raise self.f.error("general.architecture", what, UnsupportedError)

    def reject_unused(self) -> None:
        """Raise UnsupportedError for metadata or tensors of the file that the graph does not use."""
        self.tensors.reject_unused()
        self.hparams.reject_unused()
        if self.adapters:
            self.adapters.reject_unapplied(self._adapted)

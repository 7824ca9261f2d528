"""The layers of a DSpark head for DeepSeek-V4 (DeepSeek, 2026): those of the model, with attention to a window only.

    streams = embedding of a token of the block, several times
    layers with hyper-connections and experts (`localinfer.architectures.deepseek4`)
    state = weighted sum of the streams

The keys of the text's tokens, which are values, too, follow from one vector of each token in all layers.
"""

from localinfer.graph.compressed_attention import (
    COMPRESSED_BASE,
    RATIOS,
    attention_of,
    compressed_attention,
    read_compressed_attention,
    shared_keys,
)
from localinfer.graph.decoder import BranchOutput, expert_branch
from localinfer.graph.hyper_connections import apply_layer, merge_streams
from localinfer.graph.mixture_of_experts import limited_swiglu, read_router
from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.properties.hyper_connections import read_hyper_connections
from localinfer.graph.properties.model_properties import Block
from localinfer.graph.recording.attention import LayerAttention
from localinfer.graph.recording.graph_builder import GraphBuilder

STREAMS = "hyper_connection.count"  # the key that only these heads have


class StreamLayers:
    """Layers with several residual streams. Raises UnsupportedError for layers with compressed keys."""

    def __init__(self, head: GraphBuilder) -> None:
        self._head, self._shape = head, read_hyper_connections(head.hparams)
        self._attention = read_compressed_attention(head)
        if longest := max(self._attention.runs.values):
            raise head.hparams.unsupported(RATIOS, longest)
        head.rope("interleaved", base=COMPRESSED_BASE)  # that of layers with compressed keys, which files describe
        self._network = expert_branch(head, read_router(head, "sqrt_softplus"), *limited_swiglu(head))

    def store(self, states: Buffer) -> None:
        """Write the keys of the text's tokens, which have these states."""
        model = self._head.model
        for blk in self._head.blocks():
            layer = LayerAttention(f"{model.layer_prefix}{blk}", blk.heads, attention_of(self._attention, blk))
            model.attention.store(layer, shared_keys(self._head, states, blk), None)

    def apply(self, embedded: Buffer) -> Buffer:
        """Return the states of a block, whose tokens have these embeddings."""
        head, shape = self._head, self._shape
        x = head.cross_layer.streams(embedded, shape.count)
        for blk in head.blocks():
            apply_layer(head, shape, self._attend, self._network, blk, x)
        return merge_streams(head, x, "output_hc", shape)

    def _attend(self, blk: Block, h: Buffer) -> BranchOutput[Buffer]:
        return BranchOutput(compressed_attention(self._head, h, blk, self._attention), "")

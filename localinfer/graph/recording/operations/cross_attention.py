"""Records the cross-attention of a decoder to the output of an encoder.

The graph has the encoder's ops first, which evaluate all tokens of the encoder in one batch, and then the decoder's. A
sequence has the tokens of the encoder, then those of the decoder, and one KV cache. In the cache of a decoder layer,
the positions of the encoder's tokens have the keys and values of cross-attention, and the later positions those of
self-attention. While the encoder runs, before these are written, all of its layers use the cache of the first decoder
layer.
"""

from localinfer.graph.builder import Builder, CrossAttentionOperations
from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.properties.attention import AttentionSpec
from localinfer.graph.properties.model_properties import DECODER, Block
from localinfer.graph.recording.attention import LayerAttention
from localinfer.graph.recording.model_graph import ModelGraph


class CrossAttentionRecorder(CrossAttentionOperations[Buffer]):
    """Records cross-attention."""

    def __init__(self, g: Builder[Buffer], model: ModelGraph) -> None:
        self._g, self._model = g, model

    def begin_decoder(self, encoded: Buffer) -> None:
        for number, heads in enumerate(self._model.heads_of(DECODER)):
            blk = Block(number, heads, DECODER)
            with self._model.graph.reuse_buffers():
                key, value = heads.count_kv * heads.key, heads.count_kv * heads.value
                k, v = self._g.matmuls(encoded, (f"{blk}cross_attn_k", key), (f"{blk}cross_attn_v", value))
                self._model.attention.store(cross_attention(blk), k, v)
        self._model.decoder_start = len(self._model.graph.ops)

    def attend(self, blk: Block, q: Buffer) -> Buffer:
        y = self._model.attention.attend(cross_attention(blk), q, None, None)
        self._g.point(y, f"{blk}cross_attn_heads")
        return y


def cross_attention(blk: Block) -> LayerAttention:
    """Return the cross-attention of a layer of the decoder."""
    return LayerAttention(f"{blk}cross_", blk.heads, AttentionSpec(scale=1.0), cache=str(blk), of_encoder=True)

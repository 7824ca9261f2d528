"""The layers of T5's encoder and decoder: pre-norm branches, and a bias of the scores for each distance of a key."""

from localinfer.graph.attention import qkv
from localinfer.graph.builder import AttentionSpec, Block, Builder, X
from localinfer.graph.feed_forward import feed_forward
from localinfer.graph.properties.model_properties import DECODER_START, ENCODER

ENCODER_NORM, DECODER_NORM = "enc.output_norm", "dec.output_norm"
UNUSED_BIASES = "dec.blk.0.cross_attn_rel_b.weight"  # which checkpoints of T5 1.0 have
OTHER_EPSILON = "attention.layer_norm_epsilon"  # llama.cpp's converter writes the epsilon of RMSNorms twice


def build_encoder_layers(g: Builder[X]) -> X:
    """Build the layers of the encoder and return the residual stream after them, before the last norm."""
    g.hparams.accept(OTHER_EPSILON, DECODER_START)
    g.tensors.accept(UNUSED_BIASES)
    x = g.embeddings.tokens()
    for blk in g.blocks(ENCODER):
        add_self_attention(g, x, blk)
        add_feed_forward(g, x, blk)
    return x


def add_self_attention(g: Builder[X], x: X, blk: Block) -> None:
    """Add the attention of a layer to x. Scores are not scaled. Layers without biases of their own have those of the
    first layer."""
    own = f"{blk}attn_rel_b"
    bias = own if g.tensors.has(f"{own}.weight") else f"{blk.group}.0.attn_rel_b"
    q, k, v = qkv(g, g.norm(x, f"{blk}attn_norm"), blk)
    a = g.attend(blk, q, k, v, AttentionSpec(scale=1.0, bias=bias))
    g.matmul(a, f"{blk}attn_o", g.embedding_length, add_to=x)
    g.point(x, f"{blk}resid_mid")


def add_cross_attention(g: Builder[X], x: X, blk: Block) -> None:
    """Add the attention of a decoder layer to the encoder's output to x. It has no biases."""
    q = g.matmul(g.norm(x, f"{blk}cross_attn_norm"), f"{blk}cross_attn_q", blk.heads.count * blk.heads.key)
    g.matmul(g.cross_attention.attend(blk, q), f"{blk}cross_attn_o", g.embedding_length, add_to=x)


def add_feed_forward(g: Builder[X], x: X, blk: Block) -> None:
    """Add the feed-forward network of a layer to x: with a gate and GELU (T5 1.1 and later), or with ReLU."""
    gated = g.tensors.has(f"{blk}ffn_gate.weight")
    f = feed_forward(g, g.norm(x, f"{blk}ffn_norm"), blk, "gelu" if gated else "relu", gated=gated)
    g.matmul(f, f"{blk}ffn_down", g.embedding_length, add_to=x)

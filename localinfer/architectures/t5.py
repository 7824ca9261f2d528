"""T5 (Raffel et al., 2020) and its relatives: T5 1.1, Flan-T5, Flan-UL2, mT5 and umT5."""

from localinfer.graph.builder import Builder, X
from localinfer.graph.encoder_decoder import (
    DECODER_NORM,
    ENCODER_NORM,
    add_cross_attention,
    add_feed_forward,
    add_self_attention,
    build_encoder_layers,
)
from localinfer.graph.properties.model_properties import DECODER


def build(g: Builder[X]) -> None:
    """An encoder, and a decoder whose layers also attend to its output. If the output layer is the embedding, logits
    are divided by the square root of the embedding length."""
    g.cross_attention.begin_decoder(g.norm(build_encoder_layers(g), ENCODER_NORM))
    x = g.embeddings.tokens()
    for blk in g.blocks(DECODER):
        add_self_attention(g, x, blk)
        add_cross_attention(g, x, blk)
        add_feed_forward(g, x, blk)
    scale = 1.0 if g.tensors.has("output.weight") else g.embedding_length**-0.5
    g.output.logits(x, scale=scale, norm=DECODER_NORM)

"""PLaMo (Preferred Networks, 2023): parallel branches after one norm, and NeoX-style rotary embeddings."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import ONE_NORM, DecoderSpec, build_decoder


def build(g: Builder[X]) -> None:
    """Decoder whose heads of queries that share a key are adjacent, as conversion sorts them."""
    build_decoder(g, DecoderSpec(attention=AttentionSpec(g.rope("halves")), parallel=True, pre_norms=ONE_NORM))

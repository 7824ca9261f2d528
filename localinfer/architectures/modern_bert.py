"""ModernBERT (Warner et al., 2024) and its relatives: GTE, Granite Embedding R2."""

from localinfer.graph.attention import rope_swa, sliding_layers, sliding_window
from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder
from localinfer.graph.feed_forward import read_activation

PATTERN = 3  # every third layer, from the first on, has full attention, unless the file specifies otherwise


def build(g: Builder[X]) -> None:
    """Pre-norm branches; the embedding norm replaces the first one."""
    g.use_layer_norm()
    full, local = AttentionSpec(g.rope("halves")), AttentionSpec(rope_swa(g, "halves"), sliding_window(g))
    spec = DecoderSpec(
        attention=sliding_layers(g, PATTERN, first=True).choose(local, full),
        activation=read_activation(g, "gelu_erf"),
        embedding_norm=True,
    )
    build_decoder(g, spec)

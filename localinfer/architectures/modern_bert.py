"""ModernBERT (Warner et al., 2024) and its relatives: GTE, Granite Embedding R2."""

from localinfer.graph.attention import rope_swa, sliding_layers, sliding_window
from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder

PATTERN = 3  # every third layer, from the first on, has full attention, unless the file specifies otherwise
ACTIVATIONS = {"gelu": "gelu_erf", "silu": "silu", "swish": "silu", "geglu": "gelu_erf", "swiglu": "silu"}


def build(g: Builder[X]) -> None:
    """Pre-norm branches; the embedding norm replaces the first one."""
    g.use_layer_norm()
    full, local = AttentionSpec(g.rope("halves")), AttentionSpec(rope_swa(g, "halves"), sliding_window(g))
    activation = g.hparams.text("hidden_activation", "gelu")
    if activation not in ACTIVATIONS:
        raise g.hparams.unsupported("hidden_activation", repr(activation))
    spec = DecoderSpec(
        attention=[local if sliding else full for sliding in sliding_layers(g, PATTERN, first=True)],
        activation=ACTIVATIONS[activation],
        embedding_norm=True,
    )
    build_decoder(g, spec)

"""ModernBERT (Warner et al., 2024) and its relatives: GTE, Granite Embedding R2."""

from localinfer.graph.decoder import AttentionSpec, DecoderSpec, build_decoder
from localinfer.graph.graph_builder import GraphBuilder

PATTERN = 3  # every third layer, from the first on, has full attention, unless the file says otherwise
ACTIVATIONS = {"gelu": "gelu_erf", "silu": "silu", "swish": "silu", "geglu": "gelu_erf", "swiglu": "silu"}


def build(g: GraphBuilder) -> None:
    """Pre-norm branches; the embedding norm replaces the first one."""
    full, local = AttentionSpec(g.rope("halves")), AttentionSpec(g.rope_swa("halves"), g.sliding_window())
    activation = g.hparams.text("hidden_activation", "gelu")
    if activation not in ACTIVATIONS:
        raise g.hparams.unsupported("hidden_activation", repr(activation))
    spec = DecoderSpec(
        attention=[local if sliding else full for sliding in g.sliding_layers(PATTERN, first=True)],
        activation=ACTIVATIONS[activation],
        embedding_norm=True,
    )
    build_decoder(g, spec)

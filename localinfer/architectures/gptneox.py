"""GPT-NeoX and Pythia (EleutherAI, 2022): LayerNorms, parallel branches by default, partial RoPE, biases everywhere."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder
from localinfer.graph.feed_forward import read_activation


def build(g: Builder[X]) -> None:
    """Decoder with the exact GELU, unless the file names another activation."""
    g.use_layer_norm()
    parallel = g.hparams.flag("use_parallel_residual", True)
    activation = read_activation(g, "gelu_erf")
    spec = DecoderSpec(attention=AttentionSpec(g.rope("halves")), activation=activation, gated=False, parallel=parallel)
    build_decoder(g, spec)

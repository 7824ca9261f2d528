"""GPT-NeoX and Pythia (EleutherAI, 2022): LayerNorms, parallel branches by default, partial RoPE, biases everywhere."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, build_decoder


def build(g: Builder[X]) -> None:
    """Decoder with the exact GELU."""
    g.use_layer_norm()
    parallel = g.hparams.flag("use_parallel_residual", True)
    spec = DecoderSpec(attention=AttentionSpec(g.rope("halves")), activation="gelu_erf", gated=False, parallel=parallel)
    build_decoder(g, spec)

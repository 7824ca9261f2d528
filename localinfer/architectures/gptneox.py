"""GPT-NeoX and Pythia (EleutherAI, 2022): LayerNorms, parallel branches by default, partial RoPE, biases everywhere."""

from localinfer.graph.decoder import AttentionSpec, DecoderSpec, build_decoder
from localinfer.graph.graph_builder import GraphBuilder


def build(g: GraphBuilder) -> None:
    """Decoder with the exact GELU."""
    parallel = g.hparams.flag("use_parallel_residual", True)
    spec = DecoderSpec(attention=AttentionSpec(g.rope("halves")), activation="gelu_erf", gated=False, parallel=parallel)
    build_decoder(g, spec)

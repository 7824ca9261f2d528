"""North Mini (Cohere, 2026): as cohere2, with a mixture of experts, whose output is averaged with the shared expert's.
Dense first layers have rotary embeddings in any case."""

from dataclasses import replace

from localinfer.architectures.cohere2 import PATTERN
from localinfer.graph.attention import sliding_layers, sliding_window
from localinfer.graph.builder import AttentionSpec, Builder, PerLayer, X
from localinfer.graph.decoder import ONE_NORM, DecoderSpec, build_decoder
from localinfer.graph.mixture_of_experts import read_router


def build(g: Builder[X]) -> None:
    """Decoder with parallel branches. Norms are RMSNorms if the file has their epsilon."""
    if not g.hparams.has("attention.layer_norm_rms_epsilon"):
        g.use_layer_norm()
    dense = g.hparams.count("leading_dense_block_count", 0, minimum=0)
    rotated = AttentionSpec(g.rope("interleaved"))
    local, full = replace(rotated, window=sliding_window(g)), replace(rotated, rope=None)
    sliding = sliding_layers(g, PATTERN, first=True).values
    specs = [local if each else rotated if block < dense else full for block, each in enumerate(sliding)]
    spec = DecoderSpec(
        attention=PerLayer(specs, mtp=rotated),
        parallel=True,
        pre_norms=ONE_NORM,
        logit_scale=g.hparams.positive("logit_scale", 1.0),
        router=read_router(g, "sigmoid"),
        averages_experts=True,
        mtp_states="normed",
    )
    build_decoder(g, spec)

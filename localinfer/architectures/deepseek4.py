"""DeepSeek-V4 (DeepSeek, 2026): compressed attention, several residual streams that each branch mixes
(hyper-connections), and experts that the number of a token chooses in the first layers."""

from functools import partial

from localinfer.graph.builder import Block, Builder, MtpSpec, X
from localinfer.graph.compressed_attention import compressed_attention, read_compressed_attention
from localinfer.graph.decoder import BranchOutput, expert_branch
from localinfer.graph.hyper_connections import apply_layer, apply_layers, merge_streams
from localinfer.graph.mixture_of_experts import limited_swiglu, read_router
from localinfer.graph.properties.hyper_connections import read_hyper_connections


def build(g: Builder[X]) -> None:
    """All layers have experts and a shared one, whose gates are limited before SiLU. The MTP layer has all residual
    streams, and attends to a window."""
    shape, attention = read_hyper_connections(g.hparams), read_compressed_attention(g)
    g.hparams.accept("hash_layer_count", "embedding_length_out")  # tensors and the number of streams imply them

    def attend(blk: Block, h: X) -> BranchOutput[X]:
        return BranchOutput(compressed_attention(g, h, blk, attention), "")

    network = expert_branch(g, read_router(g, "sqrt_softplus"), *limited_swiglu(g))
    x = apply_layers(g, shape, attend, network)
    g.output.logits(merge_streams(g, x, "output_hc", shape))
    mtp = MtpSpec(normed_states=False, streams=shape)
    g.output.add_mtp_head(x, partial(apply_layer, g, shape, attend, network), mtp)

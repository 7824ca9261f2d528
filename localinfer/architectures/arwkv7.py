"""ARWKV (Lin et al., 2025): Qwen2 whose attention became the time mixing of RWKV-7. Gates and norms of heads are
optional."""

from localinfer.architectures.rwkv6qwen2 import decoder_without_attention
from localinfer.architectures.rwkv7 import time_mixing
from localinfer.graph.builder import Block, Builder, X
from localinfer.graph.decoder import BranchOutput
from localinfer.graph.properties.recurrence import HEAD_NORM_EPS, require_token_shifts


def build(g: Builder[X]) -> None:
    """Decoder with a time mixing instead of attention."""
    require_token_shifts(g.hparams, 1)
    has_gate, normed = (g.tensors.has(f"blk.0.time_mix_{name}.weight") for name in ("g1", "ln"))
    time_mix = time_mixing(g, has_gate=has_gate, normed=normed, norm_eps=HEAD_NORM_EPS)

    def mixer(blk: Block, h: X) -> BranchOutput[X]:
        return BranchOutput(time_mix(blk, h), "time_mix_output")

    decoder_without_attention(g, mixer)

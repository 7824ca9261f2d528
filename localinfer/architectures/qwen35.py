"""Qwen3.5 (Alibaba, 2026), the text model: three gated delta net layers for each layer with gated attention, which has
interleaved M-RoPE."""

from localinfer.graph.attention import mrope
from localinfer.graph.builder import AttentionSpec, Block, Builder, PerLayer, Rope, Router, X
from localinfer.graph.decoder import BranchOutput, DecoderSpec, build_decoder
from localinfer.graph.delta_net import attend_with_gates, gated_delta_net
from localinfer.graph.properties.recurrence import read_recurrence
from localinfer.graph.properties.rope import SECTIONS_KEY

PERIOD = 4  # every fourth layer has attention, unless the file specifies otherwise


def build(g: Builder[X], router: Router | None = None, *, repeat_interleave: bool = False) -> None:
    """The variants have experts. With `repeat_interleave` (Qwen3-Next), value heads that share a key head are adjacent,
    and one matrix computes both alpha and beta.
    """
    recurrent = read_recurrent_layers(g)
    shape = read_recurrence(g.hparams, "delta", repeat_interleave=repeat_interleave)
    attention = AttentionSpec(read_rope(g), head_norm="before_rope")

    def mixer(blk: Block, h: X) -> BranchOutput[X]:
        if not recurrent[blk]:
            return BranchOutput(attend_with_gates(g, h, blk, attention), "attn_output")
        return BranchOutput(gated_delta_net(g, h, blk, shape, "silu"), "ssm_out")

    pre_norms = {"attention": "attn_norm", "feed_forward": "post_attention_norm"}
    spec = DecoderSpec(attention=attention, pre_norms=pre_norms, router=router, mtp_states="normed")
    build_decoder(g, spec, mixer)


def read_recurrent_layers(g: Builder[X]) -> PerLayer[bool]:
    """Return which layers have a gated delta net: all but every fourth, unless the file specifies otherwise."""
    period, key = g.hparams.count("full_attention_interval", PERIOD), "attention.recurrent_layers"
    return PerLayer(g.hparams.flags(key, g.block_count, lambda block: (block + 1) % period != 0), mtp=False)


def read_rope(g: Builder[X]) -> Rope:
    """Return the rotary embedding: interleaved M-RoPE if the file has sections."""
    return mrope(g, interleaved=True) if g.hparams.has(SECTIONS_KEY) else g.rope("halves")

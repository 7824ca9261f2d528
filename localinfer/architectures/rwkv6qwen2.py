"""QRWKV (Recursal, 2025): Qwen2 whose attention became gated linear attention, with the token shift, the decays and the
gate of RWKV-6. Heads may share keys and values."""

from localinfer.graph.builder import AttentionSpec, Block, Builder, X
from localinfer.graph.decoder import BranchOutput, DecoderSpec, Mixer, apply_decoder_block
from localinfer.graph.properties.recurrence import read_wkv_head_size, read_wkv_kv_heads, require_token_shifts
from localinfer.graph.time_mixing import mixed_inputs


def build(g: Builder[X]) -> None:
    """Decoder with a time mixing instead of attention."""
    require_token_shifts(g.hparams, 1)
    size = read_wkv_head_size(g.hparams, g.embedding_length)
    n_kv = size * read_wkv_kv_heads(g.hparams, g.embedding_length // size)

    def mixer(blk: Block, h: X) -> BranchOutput[X]:
        inputs, gate = mixed_inputs(g, blk, h, n_kv)
        return BranchOutput(g.gate(gate, g.recurrent.gated_linear_attention(blk, inputs), "sigmoid"), "time_mix_output")

    decoder_without_attention(g, mixer)


def decoder_without_attention(g: Builder[X], mixer: Mixer[X]) -> None:
    """Build Qwen2 with a mixer instead of attention in all layers."""
    x, spec = g.embeddings.tokens(), DecoderSpec(attention=AttentionSpec(None))
    for blk in g.blocks():
        apply_decoder_block(g, spec, mixer, blk, x)
    g.output.logits(x)

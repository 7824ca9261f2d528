"""Nanbeige 4.2 (Nanbeige LLM Lab, 2026): Llama whose layers are applied several times, each time with keys and values
of their own."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, apply_decoder_block
from localinfer.graph.properties.repeated_layers import NUM_LOOPS


def build(g: Builder[X]) -> None:
    """The output norm follows each pass over all layers, unless the file says that it only follows the last one."""
    spec = DecoderSpec(attention=AttentionSpec(g.rope("interleaved")))
    per_pass = g.block_count // g.hparams.count(NUM_LOOPS, 1)
    skips_norm, x = g.hparams.flag("skip_loop_final_norm", False), g.embeddings.tokens()
    for blk in g.blocks():
        if blk.number and blk.number % per_pass == 0 and not skips_norm:
            g.norm_groups(x, g.embedding_length, "output_norm.weight", out=x)
        apply_decoder_block(g, spec, None, blk, x)
    g.output.logits(x)

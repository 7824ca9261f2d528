"""HRM-Text (Sapient Intelligence, 2026): two stacks of layers with gated attention and norms without weights, which
update a low and a high state in turn, several times."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, apply_decoder_block, gated_attention
from localinfer.graph.properties.repeated_layers import HIGH_CYCLES, LOW_CYCLES, PER_STACK


def build(g: Builder[X]) -> None:
    """The input of a stack is the sum of both states, and its normalized output the new low or high state. Attention is
    causal, also where a model was trained to attend to all of a prompt."""
    g.use_unweighted_norms()
    spec, n = DecoderSpec(attention=AttentionSpec(g.rope("halves"))), g.embedding_length
    attend, size, cycles = gated_attention(g, spec, "sigmoid"), g.hparams.count(PER_STACK), g.hparams.count(LOW_CYCLES)
    g.hparams.accept(HIGH_CYCLES, "hrm.prefix_lm")
    x = g.embeddings.tokens(g.hparams.positive("embedding_scale", 1.0))
    high, low = g.cross_layer.buffer(n), g.cross_layer.buffer(n)
    g.cross_layer.copy(x, high)
    g.add_vector(x, "hrm.z_l_init")
    for blk in g.blocks():
        stack, number = divmod(blk.number, size)
        if stack and number == 0:
            g.norm_groups(x, n, out=x)
            g.cross_layer.copy(x, low if stack % (cycles + 1) else high)
            g.cross_layer.copy(high, x)
            g.add(x, low)
        apply_decoder_block(g, spec, attend, blk, x)
    g.output.logits(x)

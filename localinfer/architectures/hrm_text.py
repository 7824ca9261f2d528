"""HRM-Text (Sapient Intelligence, 2026): two stacks of layers with gated attention and norms without weights, which
update a low and a high state in turn, several times."""

from localinfer.graph.builder import AttentionSpec, Builder, X
from localinfer.graph.decoder import DecoderSpec, apply_decoder_block, gated_attention
from localinfer.graph.stack_states import StackStates


def build(g: Builder[X]) -> None:
    """Attention is causal, also where a model was trained to attend to all of a prompt."""
    g.use_unweighted_norms()
    g.hparams.accept("hrm.prefix_lm")
    spec = DecoderSpec(attention=AttentionSpec(g.rope("halves")))
    attend = gated_attention(g, spec, "sigmoid")
    states = StackStates(g, g.embeddings.tokens(g.hparams.positive("embedding_scale", 1.0)))
    for blk in g.blocks():
        states.begin(blk)
        apply_decoder_block(g, spec, attend, blk, states.x)
    g.output.logits(states.x)

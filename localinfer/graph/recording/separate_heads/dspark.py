"""The Markov head and the confidence head that DSpark (DeepSeek, 2026) adds to a DFlash head.

For each token of a block, with the state and the logits of the DFlash head, after the token before it:

    m = row of markov_w1 of the token before it
    logits += markov_w2 . m
    probability that it is accepted = sigmoid(conf_proj . [state, m])

So tokens of a block depend on each other, though one pass computes all states. The confidence head may be missing. It
reads states after the last norm, in a head for DeepSeek-V4 those before it.
"""

from localinfer.errors import UnsupportedError
from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.recording.draft_head import MarkovHead, concatenate
from localinfer.graph.recording.graph_builder import GraphBuilder
from localinfer.graph.recording.operations.embeddings import look_up_rows

MARKOV = "markov_w1.weight"
CONFIDENCE = "conf_proj"


def build_markov_head(head: GraphBuilder, states: Buffer, n_vocab: int, n_logits: int) -> MarkovHead | None:
    """Build the Markov head of a head's file, if it has one, after the ops of a block with these states."""
    graph, own = head.model.graph, head.model
    if not own.tensors.has(MARKOV):
        return None
    start_op, row = len(graph.ops), graph.rows(1)
    previous, state = graph.region(4), graph.buffer(states.n, row)
    m = look_up_rows(graph, own.tensors.tensor(MARKOV, n_vocab, read_rank(head, MARKOV)), previous, rows=row)
    bias, confidence = head.matmul(m, "markov_w2", n_logits), None
    if head.hparams.flag("has_confidence_head", default=own.tensors.has(f"{CONFIDENCE}.weight")):
        confidence = head.matmul(concatenate(graph, state, m), CONFIDENCE, 1)
    return MarkovHead(start_op, row, previous, state, bias, confidence)


def read_rank(head: GraphBuilder, name: str) -> int:
    """Return the length of the rows of a tensor of low rank. Raises UnsupportedError unless it is a multiple of 32."""
    rank = head.f.tensors[name].shape[-1]
    if rank % 32:
        raise head.f.error(f"tensor {name}", f"has rows of {rank}; it must be a multiple of 32", UnsupportedError)
    return rank

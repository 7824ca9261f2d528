"""The MTP head (multi-token prediction; Gloeckle et al., 2024; DeepSeek-V3, 2024), a draft head inside the model file.

From the hidden state of a token and the embedding of the next token, it predicts the token after that:

    previous = hidden state of the previous token, in most models after the output norm; 0 for the first token
    y = eh_proj . [norm(embedding of the token), norm(previous)], for each residual stream
    one more layer, with its own keys and values, a sum of its streams, and its own norm
    logits from the output layer, or from the head's own
"""

from localinfer.graph.builder import BlockFunction, Builder, MtpSpec
from localinfer.graph.mtp import join_inputs, merge_outputs
from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.properties.mtp import mtp_norm, read_mtp_block
from localinfer.graph.recording.draft_head import (
    DraftHead,
    find_attention_op,
    previous_states,
    select_draft_rows,
)
from localinfer.graph.recording.model_graph import ModelGraph
from localinfer.graph.recording.operations.embeddings import look_up_tokens


def build_mtp_head(
    g: Builder[Buffer], model: ModelGraph, x: Buffer, apply_block: BlockFunction[Buffer], spec: MtpSpec
) -> DraftHead | None:
    """Build the MTP head after the output layer, if the file has one. `x` is the residual stream, and `apply_block`
    computes a layer."""
    if not g.tensors.has(f"blk.{g.block_count}.nextn.eh_proj.weight"):
        return None
    blk = read_mtp_block(g.properties, spec)
    prefix = f"{blk}nextn."
    graph, start_op = model.graph, len(model.graph.ops)
    states = g.norm(x, spec.norm) if spec.normed_states else x
    previous_rows, previous = previous_states(graph, states)
    embed_op = len(graph.ops)
    with graph.reuse_buffers():
        name = f"{prefix}embed_tokens" if g.tensors.has(f"{prefix}embed_tokens.weight") else "token_embd"
        y = join_inputs(g, look_up_tokens(model, name), previous, prefix, spec)
        apply_block(blk, y)
        draft_rows, drafts = select_draft_rows(graph, y)
    normed = g.norm(merge_outputs(g, drafts, prefix, spec), mtp_norm(g.tensors, blk, spec))
    output = f"{prefix}shared_head_head"
    logits = g.matmul(normed, output if g.tensors.has(f"{output}.weight") else model.output_matrix, model.n_vocab)
    if spec.scale != 1.0 or spec.cap:
        g.soft_cap(logits, spec.scale, spec.cap)
    state = normed if spec.normed_states else drafts
    attention_op = find_attention_op(graph, blk, embed_op)
    return DraftHead(
        start_op, embed_op, attention_op, states, previous_rows, previous, draft_rows, state, logits, drafts.rows
    )

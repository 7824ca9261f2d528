"""The EAGLE-3 draft head (Li et al., 2025), which has its own file.

    features = inputs of three layers of the model (low, middle, high), concatenated
    g = fc . features, or fc . norm(features)
    y = g of the previous token, or its norm
    y += attention([norm(embedding of the token), norm(g of the previous token)])
    y += feed_forward(norm(y))
    logits from norm(y), usually of a reduced vocabulary; `d2t` maps it to the model's

For draft tokens, y of the previous token replaces g. The first token has no previous one, so no token attends to its
position. Otherwise the head works like an MTP head: see `localinfer.graph.mtp`.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from localinfer.graph.attention import NO_NORMS
from localinfer.graph.buffers import Buffer
from localinfer.graph.graph_builder import GraphBuilder
from localinfer.graph.graph_builder_base import Block
from localinfer.graph.mtp import DraftHead, concatenate, find_attention_op, previous_states, select_draft_rows

FEATURES = 3
NAME = "eagle3."  # prefix of the head's cache and ops


def feature_layers(head: GraphBuilder, model: GraphBuilder) -> Sequence[int]:
    """Return the layers whose inputs the head uses; the number after the last one stands for its output.

    Raises LocalInferError if the head belongs to a model of another shape.
    """
    hparams = head.hparams
    hparams.count("block_count", maximum=1)
    blocks, n = hparams.counts("target_layers", FEATURES, minimum=0), hparams.count("target_hidden_size")
    if n != model.embedding_length:
        raise hparams.error("target_hidden_size", f"is {n}; the model's embedding has {model.embedding_length} values")
    if max(blocks) > model.block_count:
        raise hparams.error("target_layers", f"has {max(blocks)}; the model has {model.block_count} layers")
    return blocks


def build_eagle3_head(head: GraphBuilder, model: GraphBuilder) -> DraftHead:
    """Build the head after the model's output layer. The inputs of the `feature_layers` must have been captured."""
    graph, features, start_op = model.graph, model.captured_inputs, len(model.graph.ops)
    assert features is not None
    head.ids, head.attention = model.ids, model.attention
    if head.hparams.flag("norm_before_fc", default=False):
        features = head.norm(features, "enc.output_norm")
    states = head.matmul(features, "fc", head.embedding_length)
    previous_rows, previous = previous_states(graph, states)
    embed_op, y = len(graph.ops), previous
    for blk in head.blocks():
        normed = head.norm(previous, f"{blk}attn_norm_2")
        y = normed if head.hparams.flag("norm_before_residual", default=False) else previous
        inputs = concatenate(graph, head.norm(embed(head, model), f"{blk}attn_norm"), normed)
        head.matmul(attend(head, blk, inputs), f"{blk}attn_output", y.n, add_to=y)
        head.matmul(head.feed_forward(head.norm(y, f"{blk}ffn_norm"), blk, "silu"), f"{blk}ffn_down", y.n, add_to=y)
    draft_rows, state = select_draft_rows(graph, y)
    normed = head.norm(state, "output_norm")
    token_ids = read_token_ids(head, model.n_vocab)
    owner = head if head.has("output.weight") else model
    logits = owner.matmul(normed, owner.output, model.n_vocab if token_ids is None else len(token_ids))
    head.finish()
    attention_op = find_attention_op(graph, NAME, embed_op)
    return DraftHead(
        start_op,
        embed_op,
        attention_op,
        states,
        previous_rows,
        previous,
        draft_rows,
        state,
        logits,
        state.rows,
        token_ids,
    )


def embed(head: GraphBuilder, model: GraphBuilder) -> Buffer:
    """Return the rows of the head's own embedding, or of the model's."""
    if not head.has("token_embd.weight"):
        if head.embedding_length != model.embedding_length:
            what = f"is {head.embedding_length}; the model's, which is used, has {model.embedding_length} values"
            raise head.hparams.error("embedding_length", what)
        return model.lookup("token_embd")
    if head.n_vocab != model.n_vocab:
        what = f"are of {head.n_vocab} tokens; the model has {model.n_vocab}"
        raise head.f.error("tensor token_embd.weight", what)
    return head.lookup("token_embd")


def attend(head: GraphBuilder, blk: Block, x: Buffer) -> Buffer:
    """Return the attention output. Tokens do not attend to position 0."""
    q, k, v = head.qkv(x, blk)
    rope = head.rope("interleaved")
    if rope.n_rot > blk.heads.key:
        raise head.hparams.error("rope.dimension_count", f"is {rope.n_rot}; heads have {blk.heads.key} values")
    return head.attention.attend(
        NAME, q, k, v, blk.heads, kv_source=None, rope=rope, norms=NO_NORMS, window=0, chunked=False,
        scale=blk.heads.key**-0.5, cap=0.0, attn_sinks=None, k_bias=None, n_masked=1,
    )  # fmt: skip


def read_token_ids(head: GraphBuilder, n_vocab: int) -> NDArray[np.int64] | None:
    """Return the token of each logit; None if the head has the model's vocabulary."""
    found = head.f.tensors.get("d2t")
    if found is None:
        return None
    head.tensors.mark_used("d2t")
    if found.type_name != "I64" or len(found.shape) != 1:
        what = f"has type {found.type_name} and shape {list(found.shape)}; it must be I64 [n]"
        raise head.f.error("tensor d2t", what)
    ids: NDArray[np.int64] = found.data.view(np.int64)
    if ids.min() < 0 or ids.max() >= n_vocab:
        raise head.f.error("tensor d2t", f"has a token outside the vocabulary, 0 to {n_vocab - 1}")
    return ids

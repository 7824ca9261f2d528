"""The EAGLE-3 draft head (Li et al., 2025), which has its own file.

    features = inputs of three layers of the model (low, middle, high), concatenated
    g = fc . features, or fc . norm(features)
    y = g of the previous token, or its norm
    y += attention([norm(embedding of the token), norm(g of the previous token)])
    y += feed_forward(norm(y))
    logits from norm(y), usually of a reduced vocabulary; `d2t` maps it to the model's

For draft tokens, y of the previous token replaces g. The first token has no previous one, so no token attends to its
position. Otherwise the head works like an MTP head: see `localinfer.graph.recording.draft_head`.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from localinfer.graph.attention import qkv
from localinfer.graph.feed_forward import feed_forward
from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.properties.attention import AttentionSpec
from localinfer.graph.properties.model_properties import Block
from localinfer.graph.recording.attention import LayerAttention
from localinfer.graph.recording.draft_head import (
    DraftHead,
    concatenate,
    find_attention_op,
    previous_states,
    select_draft_rows,
)
from localinfer.graph.recording.graph_builder import GraphBuilder
from localinfer.graph.recording.model_graph import ModelGraph
from localinfer.graph.recording.operations.embeddings import look_up_tokens

FEATURES = 3
NAME = "eagle3."  # prefix of the head's cache and ops


def feature_layers(head: ModelGraph, model: ModelGraph) -> Sequence[int]:
    """Return the layers whose inputs the head uses; the number after the last one stands for its output.

    Raises LocalInferError if the head belongs to a model of another shape.
    """
    hparams = head.hparams
    hparams.count("block_count", maximum=1)
    n = hparams.count("target_hidden_size")
    if n != model.embedding_length:
        raise hparams.error("target_hidden_size", f"is {n}; the model's embedding has {model.embedding_length} values")
    return target_layers(head, model, FEATURES)


def target_layers(head: ModelGraph, model: ModelGraph, count: int) -> Sequence[int]:
    """Return the layers of the model that a head names. Raises LocalInferError if the model lacks one of them."""
    blocks = head.hparams.counts("target_layers", count, minimum=0)
    if max(blocks) > model.block_count:
        raise head.hparams.error("target_layers", f"has {max(blocks)}; the model has {model.block_count} layers")
    return blocks


def build_eagle3_head(head: GraphBuilder, target: GraphBuilder) -> DraftHead:
    """Build the head after the output layer of the target model. The inputs of the `feature_layers` must have been
    captured."""
    model = target.model
    graph, features, start_op = model.graph, model.captured_inputs, len(model.graph.ops)
    assert features is not None
    head.model.ids, head.model.attention = model.ids, model.attention
    if head.hparams.flag("norm_before_fc", default=False):
        features = head.norm(features, "enc.output_norm")
    states = head.matmul(features, "fc", head.embedding_length)
    previous_rows, previous = previous_states(graph, states)
    embed_op, y = len(graph.ops), previous
    for blk in head.blocks():
        normed = head.norm(previous, f"{blk}attn_norm_2")
        y = normed if head.hparams.flag("norm_before_residual", default=False) else previous
        inputs = concatenate(graph, head.norm(embed(head.model, model), f"{blk}attn_norm"), normed)
        head.matmul(attend(head, blk, inputs), f"{blk}attn_output", y.n, add_to=y)
        hidden = feed_forward(head, head.norm(y, f"{blk}ffn_norm"), blk, "silu")
        head.matmul(hidden, f"{blk}ffn_down", y.n, add_to=y)
    draft_rows, state = select_draft_rows(graph, y)
    normed = head.norm(state, "output_norm")
    token_ids = read_token_ids(head.model, model.n_vocab)
    owner = head if head.tensors.has("output.weight") else target
    n_logits = model.n_vocab if token_ids is None else len(token_ids)
    logits = owner.matmul(normed, owner.model.output_matrix, n_logits)
    head.model.reject_unused()
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


def embed(head: ModelGraph, model: ModelGraph, factor: float = 1.0) -> Buffer:
    """Return the rows of the head's own embedding, or of the model's, times a factor."""
    if not head.tensors.has("token_embd.weight"):
        if head.embedding_length != model.embedding_length:
            what = f"is {head.embedding_length}; the model's, which is used, has {model.embedding_length} values"
            raise head.hparams.error("embedding_length", what)
        return look_up_tokens(model, "token_embd", factor)
    if head.n_vocab != model.n_vocab:
        what = f"are of {head.n_vocab} tokens; the model has {model.n_vocab}"
        raise head.f.error("tensor token_embd.weight", what)
    return look_up_tokens(head, "token_embd", factor)


def attend(head: GraphBuilder, blk: Block, x: Buffer) -> Buffer:
    """Return the attention output. Tokens do not attend to position 0."""
    q, k, v = qkv(head, x, blk)
    rope = head.rope("interleaved")
    if rope.n_rot > blk.heads.key:
        raise head.hparams.error("rope.dimension_count", f"is {rope.n_rot}; heads have {blk.heads.key} values")
    layer = LayerAttention(NAME, blk.heads, AttentionSpec(rope), n_masked=1)
    return head.model.attention.attend(layer, q, k, v)


def read_token_ids(head: ModelGraph, n_vocab: int) -> NDArray[np.int64] | None:
    """Return the token of each logit; None if the head has the model's vocabulary."""
    found = head.f.tensors.get("d2t")
    if found is None:
        return None
    head.tensors.accept("d2t")
    if found.type_name != "I64" or len(found.shape) != 1:
        what = f"has type {found.type_name} and shape {list(found.shape)}; it must be I64 [n]"
        raise head.f.error("tensor d2t", what)
    ids: NDArray[np.int64] = found.data.view(np.int64)
    if ids.min() < 0 or ids.max() >= n_vocab:
        raise head.f.error("tensor d2t", f"has a token outside the vocabulary, 0 to {n_vocab - 1}")
    return ids

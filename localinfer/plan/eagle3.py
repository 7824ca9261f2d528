"""A head in a file of its own, beside the model that it guesses for (EAGLE-3; Li et al., 2025).

    features = what goes into three blocks of the model, a low, a middle and a high one, side by side
    g = fc . features, or fc . norm(features)
    y = g of the token before, or its norm
    y += attention, from and to [norm(embedding of the token), norm(g of the token before)]
    y += a feed-forward network of norm(y)
    logits by norm(y), mostly of some tokens of the vocabulary only: `d2t` says of which

Where the token before is only guessed, what y was for that stands for g. Nothing is before the first token, so that
nobody sees its keys. Otherwise all is as with a head in the model's own file: see `localinfer.plan.ahead`.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from localinfer.plan.ahead import Ahead, attention_of, line_up, rows_of_guesses, side_by_side
from localinfer.plan.attention import NO_NORMS
from localinfer.plan.basics import Block
from localinfer.plan.buffers import Buffer
from localinfer.plan.recorder import Recorder

FEATURES = 3
NAME = "eagle3."  # of what is beside the model's own blocks


def feature_blocks(head: Recorder, model: Recorder) -> Sequence[int]:
    """The blocks of the model whose inputs the head looks at; the number behind the last one stands for its output.

    LocalInferError for a head of a model of another shape.
    """
    keys = head.keys
    keys.count("block_count", most=1)
    blocks, n = keys.counts("target_layers", FEATURES, least=0), keys.count("target_hidden_size")
    if n != model.embedding_length:
        raise keys.error("target_hidden_size", f"is {n}; the model's embedding has {model.embedding_length} values")
    if max(blocks) > model.block_count:
        raise keys.error("target_layers", f"has {max(blocks)}; the model has {model.block_count} blocks")
    return blocks


def record_eagle3(head: Recorder, model: Recorder) -> Ahead:
    """Record the head behind the model's output layer; what goes into its `feature_blocks` has been kept."""
    plan, features, start = model.plan, model.inputs, len(model.plan.ops)
    assert features is not None
    head.ids, head.attention = model.ids, model.attention
    if head.keys.flag("norm_before_fc", default=False):
        features = head.norm(features, "enc.output_norm")
    states = head.matmul(features, "fc", head.embedding_length)
    numbers, before = line_up(plan, states)
    keys, y = len(plan.ops), before
    for blk in head.blocks():
        normed = head.norm(before, f"{blk}attn_norm_2")
        y = normed if head.keys.flag("norm_before_residual", default=False) else before
        both = side_by_side(plan, head.norm(embedded(head, model), f"{blk}attn_norm"), normed)
        head.matmul(attended(head, blk, both), f"{blk}attn_output", y.n, add_to=y)
        head.matmul(head.feed_forward(head.norm(y, f"{blk}ffn_norm"), blk, "silu"), f"{blk}ffn_down", y.n, add_to=y)
    picked, state = rows_of_guesses(plan, y)
    normed = head.norm(state, "output_norm")
    ids = read_ids(head, model.n_vocab)
    owner = head if head.has("output.weight") else model
    logits = owner.matmul(normed, owner.output, model.n_vocab if ids is None else len(ids))
    head.finish()
    look = attention_of(plan, NAME, keys)
    return Ahead(start, keys, look, states, numbers, before, picked, state, logits, state.rows, ids)


def embedded(head: Recorder, model: Recorder) -> Buffer:
    """The rows of the head's own embedding, or of the model's."""
    if not head.has("token_embd.weight"):
        if head.embedding_length != model.embedding_length:
            what = f"is {head.embedding_length}; the model's, which is used, has {model.embedding_length} values"
            raise head.keys.error("embedding_length", what)
        return model.look_up("token_embd")
    if head.n_vocab != model.n_vocab:
        what = f"are of {head.n_vocab} tokens; the model has {model.n_vocab}"
        raise head.f.error("tensor token_embd.weight", what)
    return head.look_up("token_embd")


def attended(head: Recorder, blk: Block, both: Buffer) -> Buffer:
    """What tokens find when they look back at the first pair and those behind it."""
    q, k, v = head.qkv(both, blk)
    rope = head.rope("neighbours")
    if rope.n_rot > blk.heads.key:
        raise head.keys.error("rope.dimension_count", f"is {rope.n_rot}; heads have {blk.heads.key} values")
    return head.attention.attend(
        NAME, q, k, v, blk.heads, of=None, rope=rope, norms=NO_NORMS, window=0, stretches=False,
        scale=blk.heads.key**-0.5, cap=0.0, attn_sinks=None, k_bias=None, unseen=1,
    )  # fmt: skip


def read_ids(head: Recorder, n_vocab: int) -> NDArray[np.int64] | None:
    """The token of each logit; None where there is one of each token."""
    found = head.f.tensors.get("d2t")
    if found is None:
        return None
    head.tensors.mention("d2t")
    if found.type_name != "I64" or len(found.shape) != 1:
        what = f"has type {found.type_name} and shape {list(found.shape)}; it must be I64 [n]"
        raise head.f.error("tensor d2t", what)
    ids: NDArray[np.int64] = found.data.view(np.int64)
    if ids.min() < 0 or ids.max() >= n_vocab:
        raise head.f.error("tensor d2t", f"has a token outside of the vocabulary, 0 to {n_vocab - 1}")
    return ids

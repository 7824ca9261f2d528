"""Reorder the rows of a matrix, or the values of a bias, to GGUF's order. Values of any dtype are moved or negated.

Each function takes the values, (rows, ...), and the hyperparameters. In the docstrings, q1 and so on stand for all
rows of a head.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from localinfer.conversion.hparams import HParams
from localinfer.conversion.tensor_formats.values import Values

Reorder: TypeAlias = Callable[[Values, HParams], Values]


def transpose(values: Values, hp: HParams) -> Values:  # noqa: ARG001 (one signature for all)
    """Transpose a matrix, for checkpoints that store columns as rows; a bias is unchanged."""
    return values.swapaxes(-2, -1) if values.ndim > 1 else values


def transposed_mixing(values: Values, hp: HParams) -> Values:  # noqa: ARG001
    """Return the transposed matrices of QRWKV's five mixtures, in the order w k v r g of RWKV-6 instead of r k v w g:
    one for each, or all as the rows of one."""
    rows = values.swapaxes(-2, -1)
    return rows.reshape(5, -1, rows.shape[-1])[[3, 1, 2, 0, 4]].reshape(rows.shape)


# --- gate and up matrices of experts ---


def even_columns(values: Values, hp: HParams) -> Values:  # noqa: ARG001
    """Return g1 g2 of the columns g1 u1 g2 u2, transposed to rows, or of their biases."""
    return values[..., ::2].swapaxes(1, 2) if values.ndim > 2 else values[..., ::2]


def odd_columns(values: Values, hp: HParams) -> Values:  # noqa: ARG001
    """Return u1 u2 of the columns g1 u1 g2 u2, transposed to rows, or of their biases."""
    return values[..., 1::2].swapaxes(1, 2) if values.ndim > 2 else values[..., 1::2]


def append_zero_row(values: Values, hp: HParams) -> Values:  # noqa: ARG001
    """Return the rows and one more, of zeros."""
    return np.pad(values, ((0, 1), (0, 0)))


def first_half(values: Values, hp: HParams) -> Values:  # noqa: ARG001
    """Return g1 g2 of the rows g1 g2 u1 u2 (gate before up), per expert if there are several."""
    return values[..., : values.shape[-2] // 2, :]


def second_half(values: Values, hp: HParams) -> Values:  # noqa: ARG001
    """Return u1 u2 of the rows g1 g2 u1 u2, per expert if there are several."""
    return values[..., values.shape[-2] // 2 :, :]


def first_columns(values: Values, hp: HParams) -> Values:  # noqa: ARG001
    """Return g1 g2 of the columns g1 g2 u1 u2 of stacked matrices, transposed to rows."""
    return values[..., : values.shape[-1] // 2].swapaxes(1, 2)


def last_columns(values: Values, hp: HParams) -> Values:  # noqa: ARG001
    """Return u1 u2 of the columns g1 g2 u1 u2 of stacked matrices, transposed to rows."""
    return values[..., values.shape[-1] // 2 :].swapaxes(1, 2)


def split_experts(values: Values, hp: HParams) -> Values:
    """Return one matrix for each expert of a matrix with the rows of all."""
    return values.reshape(hp.n_expert, hp.n_ff_expert, -1)


def split_and_transpose_experts(values: Values, hp: HParams) -> Values:
    """Return one transposed matrix for each expert of a matrix with the rows of all."""
    return split_experts(values, hp).swapaxes(1, 2)


def drop_position_offset(values: Values, hp: HParams) -> Values:
    """Drop the rows of unused positions: some models count positions from the padding token's id + 1."""
    return values[hp.position_offset :]


# --- multi-head latent attention ---


def latent_keys(values: Values, hp: HParams) -> Values:
    """Return the key matrices of MLA, (heads, latent, values), from heads k1 v1 k2 v2; queries are multiplied with
    them.
    """
    return latent_heads(values, hp)[:, : hp.sizes["n_qk_nope"]].swapaxes(1, 2)


def latent_values(values: Values, hp: HParams) -> Values:
    """Return the value matrices of MLA, (heads, values, latent), from heads k1 v1 k2 v2."""
    return latent_heads(values, hp)[:, hp.sizes["n_qk_nope"] :]


def latent_heads(values: Values, hp: HParams) -> Values:
    """Return the rows of kv_b grouped by heads: (heads, key and value rows, rank)."""
    return values.reshape(hp.n_head, hp.sizes["n_qk_nope"] + hp.sizes["n_value"], -1)


def pad_vocabulary(values: Values, hp: HParams) -> Values:
    """Append zero rows for tokens without embeddings: image and audio tokens, whose embeddings come from other
    encoders.
    """
    more = np.zeros((hp.n_vocab - len(values), *values.shape[1:]), values.dtype)
    return np.concatenate([values, more])


def index_queries(values: Values, hp: HParams) -> Values:
    """Return the rows of the queries of an indexer, which come before those of its key."""
    return values[: hp.sizes["n_index"]]


def index_key(values: Values, hp: HParams) -> Values:
    """Return the rows of the key of an indexer, which come after those of its queries."""
    return values[hp.sizes["n_index"] :]


# --- pairs of values that rope rotates ---


def interleave_halves(values: Values, heads: int) -> Values:
    """Interleave the two halves of each head, because rope rotates adjacent values: rows 0 1 2 3 4 5 -> 0 3 1 4 2 5."""
    halves = values.reshape(heads, 2, len(values) // heads // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def interleave_query_halves(values: Values, hp: HParams) -> Values:
    """Return query rows with the halves of each head interleaved."""
    return interleave_halves(values, hp.n_head)


def interleave_key_halves(values: Values, hp: HParams) -> Values:
    """Return key rows with the halves of each head interleaved."""
    return interleave_halves(values, hp.n_head_kv)


def negate_second_halves(values: Values, heads: int) -> Values:
    """Return rows whose second half of each head has the other sign, for models that rotate in the other direction."""
    rows = values.reshape(heads, 2, -1).copy()
    bits = rows[:, 1].view(f"u{values.itemsize}")
    bits ^= bits.dtype.type(1 << (8 * values.itemsize - 1))  # the sign of a float of any type
    return rows.reshape(values.shape)


def reverse_query_rotation(values: Values, hp: HParams) -> Values:
    """Return query rows for a rotation in the other direction."""
    return negate_second_halves(values, hp.n_head)


def reverse_key_rotation(values: Values, hp: HParams) -> Values:
    """Return key rows for a rotation in the other direction."""
    return negate_second_halves(values, hp.n_head_kv)


def halve_pairs(values: Values, heads: int, n_rot: int) -> Values:
    """Undo `interleave_halves` for the first n_rot rows of each head: rows 0 1 2 3 4 5 -> 0 2 1 3 4 5 if 4 are rotated,
    because rope with several coordinates (M-RoPE) rotates halves."""
    rows = values.reshape(heads, len(values) // heads, *values.shape[1:])
    rotated, others = rows[:, :n_rot], rows[:, n_rot:]
    return np.concatenate([rotated[:, ::2], rotated[:, 1::2], others], axis=1).reshape(values.shape)


def halve_query_pairs(values: Values, hp: HParams) -> Values:
    """Return query rows with the even rows of the rotated part of each head before the odd ones."""
    return halve_pairs(values, hp.n_head, hp.rope.n_rot)


def halve_key_pairs(values: Values, hp: HParams) -> Values:
    """Return key rows with the even rows of the rotated part of each head before the odd ones."""
    return halve_pairs(values, hp.n_head_kv, hp.rope.n_rot)


def halve_norm_pairs(values: Values, hp: HParams) -> Values:
    """Return the weights of a norm of query or key heads with the even ones of the rotated part before the odd ones."""
    return halve_pairs(values, 1, hp.rope.n_rot)


# --- value heads that share a recurrent key head ---


def interleave_value_heads(values: Values, hp: HParams, size: int) -> Values:
    """Reorder value heads from grouped by key head to interleaved: v1 v1' v2 v2' -> v1 v2 v1' v2'"""
    groups = hp.sizes["n_groups"]
    heads = values.reshape(groups, hp.sizes["n_heads"] // groups, size, *values.shape[1:])
    return heads.swapaxes(0, 1).reshape(values.shape)


def interleave_scalars(values: Values, hp: HParams) -> Values:
    """Return one number per value head, in the order of `interleave_value_heads`."""
    return interleave_value_heads(values, hp, 1)


def interleave_values(values: Values, hp: HParams) -> Values:
    """Return the rows of value heads, in the order of `interleave_value_heads`."""
    return interleave_value_heads(values, hp, hp.sizes["n_value"])


def interleave_values_after_keys(values: Values, hp: HParams) -> Values:
    """Interleave the value heads after the rows of queries and keys, which are unchanged."""
    keys = len(values) - hp.sizes["n_values"]
    return np.concatenate([values[:keys], interleave_values(values[keys:], hp)])


def interleave_columns(values: Values, hp: HParams) -> Values:
    """Return the columns of value heads, in the order of `interleave_value_heads`."""
    return interleave_values(values.T, hp).T


# --- fused projections of recurrent heads ---


def split_recurrent_projection(values: Values, hp: HParams) -> list[Values]:
    """Split q1 k1 v1 v1' z1 z1' q2 k2 v2 v2' z2 z2' into [q1 q2], [k1 k2], [v1 v1' v2 v2'], [z1 z1' z2 z2']."""
    groups, key, value = hp.sizes["n_groups"], hp.sizes["n_key"], hp.sizes["n_values"]
    each = values.reshape(groups, -1, *values.shape[1:])
    ends = np.cumsum([key, key, value // groups])
    return [rows.reshape(-1, *values.shape[1:]) for rows in np.split(each, ends, axis=1)]


def recurrent_qkv(values: Values, hp: HParams) -> Values:
    """Return the queries, keys and values of a fused projection."""
    return np.concatenate(split_recurrent_projection(values, hp)[:3])


def recurrent_gates(values: Values, hp: HParams) -> Values:
    """Return the gates z of a fused projection."""
    return split_recurrent_projection(values, hp)[3]


# --- fused queries, keys and values ---


def first_queries(values: Values, hp: HParams) -> Values:
    """Return q1 q2 of the rows q1 q2 k1 k2 v1 v2, with the halves of each head interleaved."""
    return interleave_query_halves(values[: hp.n_q], hp)


def middle_keys(values: Values, hp: HParams) -> Values:
    """Return k1 k2 of the rows q1 q2 k1 k2 v1 v2, with the halves of each head interleaved."""
    return interleave_key_halves(values[hp.n_q : hp.n_q + hp.n_kv], hp)


def last_values(values: Values, hp: HParams) -> Values:
    """Return v1 v2 of the rows q1 q2 k1 k2 v1 v2."""
    return values[hp.n_q + hp.n_kv :]


def group_qkv(values: Values, hp: HParams) -> Values:
    """Reorder q1 k1 v1 q2 k2 v2 to q1 q2 k1 k2 v1 v2."""
    heads = values.reshape(hp.n_head, 3, hp.head_dim, *values.shape[1:])
    return heads.swapaxes(0, 1).reshape(values.shape)


def group_gqa_qkv(values: Values, hp: HParams) -> Values:
    """Reorder q1 q2 k1 v1 q3 q4 k2 v2 to q1 q2 q3 q4 k1 k2 v1 v2."""
    return np.concatenate([rows.reshape(-1, *values.shape[1:]) for rows in split_gqa_qkv(values, hp)])


def group_tiled_heads(values: Values, hp: HParams) -> Values:
    """Return query heads grouped by the key that they share: q1 q2 q1' q2' -> q1 q1' q2 q2'."""
    heads = values.reshape(hp.heads_per_group, hp.n_head_kv, hp.head_dim, *values.shape[1:])
    return heads.swapaxes(0, 1).reshape(values.shape)


def group_tiled_columns(values: Values, hp: HParams) -> Values:
    """Return the columns of query heads, in the order of `group_tiled_heads`."""
    return group_tiled_heads(values.T, hp).T


def split_gqa_qkv(values: Values, hp: HParams) -> tuple[Values, Values, Values]:
    """Return queries, keys and values, each (groups, heads per group, head_dim, ...)."""
    groups = values.reshape(hp.n_head_kv, hp.heads_per_group + 2, hp.head_dim, *values.shape[1:])
    return groups[:, :-2], groups[:, -2:-1], groups[:, -1:]


def gqa_queries(values: Values, hp: HParams) -> Values:
    """Return the queries of a fused matrix, with the halves of each head interleaved."""
    return interleave_query_halves(split_gqa_qkv(values, hp)[0].reshape(-1, *values.shape[1:]), hp)


def gqa_keys(values: Values, hp: HParams) -> Values:
    """Return the keys of a fused matrix, with the halves of each head interleaved."""
    return interleave_key_halves(split_gqa_qkv(values, hp)[1].reshape(-1, *values.shape[1:]), hp)


def gqa_values(values: Values, hp: HParams) -> Values:
    """Return the values of a fused matrix."""
    return split_gqa_qkv(values, hp)[2].reshape(-1, *values.shape[1:])


# Functions that reorder columns or change values, which is impossible for types whose columns are stored in blocks.
COLUMN_REORDERS = (
    transpose, transposed_mixing, even_columns, odd_columns, first_columns, last_columns, latent_keys, latent_values,
    interleave_columns, group_tiled_columns, split_and_transpose_experts, reverse_query_rotation, reverse_key_rotation,
)  # fmt: skip

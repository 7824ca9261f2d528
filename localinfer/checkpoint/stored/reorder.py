"""A matrix's rows, or a bias's values, in GGUF's order. Nothing is computed: values of any type only change places.

A function takes the values, (rows, ...), and the model's numbers, and gives the values in their new places. In the
pictures, q1 and so on stand for all rows of a head.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from localinfer.checkpoint.numbers import Numbers
from localinfer.checkpoint.stored.values import Values

Reorder: TypeAlias = Callable[[Values, Numbers], Values]


def transposed(values: Values, n: Numbers) -> Values:  # noqa: ARG001 (one signature for all)
    """Columns become rows: some checkpoints multiply from the right. A bias stays what it is."""
    return values.swapaxes(-2, -1) if values.ndim > 1 else values


# --- gates and ups of experts in turn ---


def gates(values: Values, n: Numbers) -> Values:  # noqa: ARG001
    """Of columns g1 u1 g2 u2, which become rows, or of their biases: g1 g2"""
    return values[..., ::2].swapaxes(1, 2) if values.ndim > 2 else values[..., ::2]


def ups(values: Values, n: Numbers) -> Values:  # noqa: ARG001
    """u1 u2"""
    return values[..., 1::2].swapaxes(1, 2) if values.ndim > 2 else values[..., 1::2]


def first_half(values: Values, n: Numbers) -> Values:  # noqa: ARG001
    """Of rows g1 g2 u1 u2, gates before ups, in each expert if there are many: g1 g2"""
    return values[..., : values.shape[-2] // 2, :]


def second_half(values: Values, n: Numbers) -> Values:  # noqa: ARG001
    """u1 u2"""
    return values[..., values.shape[-2] // 2 :, :]


def first_columns(values: Values, n: Numbers) -> Values:  # noqa: ARG001
    """Of columns g1 g2 u1 u2 of many matrices, which become rows: g1 g2"""
    return values[..., : values.shape[-1] // 2].swapaxes(1, 2)


def last_columns(values: Values, n: Numbers) -> Values:  # noqa: ARG001
    """u1 u2"""
    return values[..., values.shape[-1] // 2 :].swapaxes(1, 2)


def from_first_position(values: Values, n: Numbers) -> Values:
    """Rows that no token stands at are left out: some models count positions from behind their padding token's id."""
    return values[n.first_position :]


# --- what makes keys and values of a latent vector ---


def keys_of_latent(values: Values, n: Numbers) -> Values:
    """Of heads k1 v1 k2 v2, (heads, latent, values): the keys, whose matrices queries are multiplied with."""
    return heads_of_latent(values, n)[:, : n.sizes["n_plain"]].swapaxes(1, 2)


def values_of_latent(values: Values, n: Numbers) -> Values:
    """(heads, values, latent): the values."""
    return heads_of_latent(values, n)[:, n.sizes["n_plain"] :]


def heads_of_latent(values: Values, n: Numbers) -> Values:
    return values.reshape(n.n_head, n.sizes["n_plain"] + n.sizes["n_value"], -1)


def to_whole_vocabulary(values: Values, n: Numbers) -> Values:
    """Rows of zeros for tokens that have none: pictures and sounds, whose vectors come from elsewhere."""
    more = np.zeros((n.n_vocab - len(values), *values.shape[1:]), values.dtype)
    return np.concatenate([values, more])


# --- values of a head that turn together ---


def neighbours(values: Values, heads: int) -> Values:
    """The halves of a head, which turn together, become neighbours: rows 0 1 2 3 4 5 -> 0 3 1 4 2 5."""
    halves = values.reshape(heads, 2, len(values) // heads // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def neighbouring_queries(values: Values, n: Numbers) -> Values:
    return neighbours(values, n.n_head)


def neighbouring_keys(values: Values, n: Numbers) -> Values:
    return neighbours(values, n.n_head_kv)


# --- heads of values that share a recurrent key ---


def taking_turns(values: Values, n: Numbers, size: int) -> Values:
    """Heads of values beside those they share a key with -> in turns: v1 v1' v2 v2' -> v1 v2 v1' v2'"""
    groups = n.sizes["n_groups"]
    heads = values.reshape(groups, n.sizes["n_heads"] // groups, size, *values.shape[1:])
    return heads.swapaxes(0, 1).reshape(values.shape)


def numbers_in_turns(values: Values, n: Numbers) -> Values:
    return taking_turns(values, n, 1)


def values_in_turns(values: Values, n: Numbers) -> Values:
    return taking_turns(values, n, n.sizes["n_value"])


def behind_keys_in_turns(values: Values, n: Numbers) -> Values:
    """Behind the rows of queries and keys, which stay."""
    keys = len(values) - n.sizes["n_values"]
    return np.concatenate([values[:keys], values_in_turns(values[keys:], n)])


def columns_in_turns(values: Values, n: Numbers) -> Values:
    return values_in_turns(values.T, n).T


# --- queries, keys, values and gates of recurrent heads in one matrix ---


def parts_of_keys(values: Values, n: Numbers) -> list[Values]:
    """q1 k1 v1 v1' z1 z1' q2 k2 v2 v2' z2 z2' -> q1 q2, k1 k2, v1 v1' v2 v2', z1 z1' z2 z2'"""
    groups, key, value = n.sizes["n_groups"], n.sizes["n_key"], n.sizes["n_values"]
    each = values.reshape(groups, -1, *values.shape[1:])
    ends = np.cumsum([key, key, value // groups])
    return [part.reshape(-1, *values.shape[1:]) for part in np.split(each, ends, axis=1)]


def keys_and_values(values: Values, n: Numbers) -> Values:
    return np.concatenate(parts_of_keys(values, n)[:3])


def gates_of_values(values: Values, n: Numbers) -> Values:
    return parts_of_keys(values, n)[3]


# --- queries, keys and values in one matrix ---


def by_kind(values: Values, n: Numbers) -> Values:
    """q1 k1 v1 q2 k2 v2 -> q1 q2 k1 k2 v1 v2"""
    heads = values.reshape(n.n_head, 3, n.head_dim, *values.shape[1:])
    return heads.swapaxes(0, 1).reshape(values.shape)


def by_kind_of_groups(values: Values, n: Numbers) -> Values:
    """q1 q2 k1 v1 q3 q4 k2 v2 -> q1 q2 q3 q4 k1 k2 v1 v2"""
    return np.concatenate([part.reshape(-1, *values.shape[1:]) for part in parts_of_groups(values, n)])


def parts_of_groups(values: Values, n: Numbers) -> tuple[Values, Values, Values]:
    """Queries, keys and values: (groups, heads of each, head_dim, ...)"""
    groups = values.reshape(n.n_head_kv, n.heads_of_group + 2, n.head_dim, *values.shape[1:])
    return groups[:, :-2], groups[:, -2:-1], groups[:, -1:]


def queries_of_groups(values: Values, n: Numbers) -> Values:
    return neighbouring_queries(parts_of_groups(values, n)[0].reshape(-1, *values.shape[1:]), n)


def keys_of_groups(values: Values, n: Numbers) -> Values:
    return neighbouring_keys(parts_of_groups(values, n)[1].reshape(-1, *values.shape[1:]), n)


def values_of_groups(values: Values, n: Numbers) -> Values:
    return parts_of_groups(values, n)[2].reshape(-1, *values.shape[1:])

"""RWKV-7's words: a token and the one before it are mixed, heads remember in matrices.

What is computed is in `localinfer.ops.wkv`. A "lerp" is x + weight * (other - x).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from localinfer.files.gguf import Tensor
from localinfer.ops.calls import LERP, RECUR_WKV, SHIFT, WKV_FINISH, WKV_PREPARE
from localinfer.ops.layout import state_strip
from localinfer.plan.basics import Basics, Block
from localinfer.plan.buffers import Buffer
from localinfer.plan.keys import Keys
from localinfer.plan.tensors import rows_of
from localinfer.plan.work import Amount, Work


@dataclass(frozen=True)
class HeadInputs:
    """What matrices make of a token, [token][head][value] each: the receptance, which asks the state, how much of it is
    forgotten, a key and its value, and how much of what was there is replaced."""

    r: Buffer
    w: Buffer
    k: Buffer
    v: Buffer
    a: Buffer


def read_head_size(keys: Keys, embedding_length: int) -> int:
    """The values of a head, of which there are as many as make up the embedding; kernels take strips of them."""
    size = keys.count("wkv.head_size", most=1 << 12)
    if size % state_strip(size) or embedding_length % size:
        raise keys.refuse("wkv.head_size", size)
    return size


def shift(r: Basics, x: Buffer) -> Buffer:
    """The row of the token before each; of the first one, zeros."""
    y = r.plan.buffer(x.n)
    r.plan.op(
        "shift", SHIFT, x.rows, rounds=(1, 4), x=x, n=x.n, segments=r.state.segments, tail=r.state.layer(4 * x.n), y=y
    )
    return y


def lerp(r: Basics, x: Buffer, other: Buffer, weight: Buffer | Tensor) -> Buffer:
    """Some of the other, as much as each token's weights say, or those of all tokens."""
    y, step = r.plan.buffer(x.n), x.n if isinstance(weight, Buffer) else 0
    r.plan.op("lerp", LERP, x.rows, rounds=(0, 4), x=x, other=other, weight=weight, step=step, n=x.n, y=y)
    return y


def lerps(r: Basics, x: Buffer, other: Buffer, name: str, count: int) -> Sequence[Buffer]:
    """As many of them as the rows of a tensor."""
    weights = r.tensors.floats(f"{name}.weight", *([count, 1, 1] if count > 1 else []), x.n)
    return [lerp(r, x, other, rows_of(weights, number, 1) if count > 1 else weights) for number in range(count)]


def time_mix(r: Basics, blk: Block, x: HeadInputs) -> Buffer:
    """What the states of all heads answer to each token, normalised; w, k and a are spoilt."""
    size, n, plan, name = read_head_size(r.keys, r.embedding_length), x.r.n, r.plan, f"{blk}time_mix"
    heads, inside = n // size, {"size": size}
    vector = {kind: r.tensors.vector(f"{name}_{kind}.weight", n) for kind in ("k_k", "k_a", "r_k", "ln")}
    removed, y, state_bytes = plan.buffer(n), plan.buffer(n), 4 * n * size
    plan.op(
        f"{name}.prepare", WKV_PREPARE, x.r.rows, constants=inside, rounds=(1, 4), w=x.w, k=x.k, a=x.a,
        k_k=vector["k_k"], k_a=vector["k_a"], heads=heads, removed=removed,
    )  # fmt: skip
    plan.op(
        f"{name}.recur", RECUR_WKV, x.r.rows, constants=inside, rounds=(1, 4),
        work=Work(Amount(state_bytes), Amount(fmas=state_bytes)), r=x.r, w=x.w, k=x.k, v=x.v, a=x.a, removed=removed,
        heads=heads, segments=r.state.segments, state=r.state.layer(state_bytes), y=y,
    )  # fmt: skip
    plan.op(
        f"{name}.finish", WKV_FINISH, x.r.rows, constants=inside, rounds=(1, 4), r=x.r, k=x.k, v=x.v,
        r_k=vector["r_k"], weight=vector["ln"], bias=r.tensors.vector(f"{name}_ln.bias", n), heads=heads,
        eps=size * r.eps, y=y,
    )  # fmt: skip
    return y

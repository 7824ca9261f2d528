"""RWKV-7's time mixing, whose kernels are in `localinfer.kernels.wkv`. A lerp is x + weight * (other - x)."""

from collections.abc import Sequence
from dataclasses import dataclass

from localinfer.gguf.reader import Tensor
from localinfer.graph.buffers import Buffer
from localinfer.graph.cost import Cost, CostModel
from localinfer.graph.graph_builder_base import Block, GraphBuilderBase
from localinfer.graph.hyperparameters import Hyperparameters
from localinfer.graph.tensors import row_slice
from localinfer.kernels.layout import state_strip
from localinfer.kernels.signatures import LERP, RECUR_WKV, TOKEN_SHIFT, WKV_FINISH, WKV_PREPARE


@dataclass(frozen=True)
class HeadInputs:
    """Inputs of the time mixing, each [token][head][value]: receptance (query), decay, key, value and in-context
    learning rate."""

    r: Buffer
    w: Buffer
    k: Buffer
    v: Buffer
    a: Buffer


def read_head_size(hparams: Hyperparameters, embedding_length: int) -> int:
    """Return the head size, which must divide n_embd and be a multiple of the kernels' strip size."""
    size = hparams.count("wkv.head_size", maximum=1 << 12)
    if size % state_strip(size) or embedding_length % size:
        raise hparams.unsupported("wkv.head_size", size)
    return size


def token_shift(g: GraphBuilderBase, x: Buffer) -> Buffer:
    """Return the previous token's row for each token; zeros for the first token of a sequence."""
    y = g.graph.buffer(x.n)
    g.graph.op(
        "shift",
        TOKEN_SHIFT,
        x.rows,
        chunks=(1, 4),
        x=x,
        n=x.n,
        segments=g.states.segments,
        tail=g.states.add_layer(4 * x.n),
        y=y,
    )
    return y


def lerp(g: GraphBuilderBase, x: Buffer, other: Buffer, weight: Buffer | Tensor) -> Buffer:
    """Return x + weight * (other - x). `weight` has a row per token, or one row for all tokens."""
    y, step = g.graph.buffer(x.n), x.n if isinstance(weight, Buffer) else 0
    g.graph.op("lerp", LERP, x.rows, chunks=(0, 4), x=x, other=other, weight=weight, step=step, n=x.n, y=y)
    return y


def lerps(g: GraphBuilderBase, x: Buffer, other: Buffer, name: str, count: int) -> Sequence[Buffer]:
    """Return one lerp for each of the `count` rows of a weight tensor."""
    weights = g.tensors.floats(f"{name}.weight", *([count, 1, 1] if count > 1 else []), x.n)
    return [lerp(g, x, other, row_slice(weights, number, 1) if count > 1 else weights) for number in range(count)]


def time_mix(g: GraphBuilderBase, blk: Block, x: HeadInputs) -> Buffer:
    """Return the normalised output of the recurrent heads. Overwrites w, k and a."""
    size, n, graph, name = read_head_size(g.hparams, g.embedding_length), x.r.n, g.graph, f"{blk}time_mix"
    heads, constants = n // size, {"size": size}
    vector = {kind: g.tensors.vector(f"{name}_{kind}.weight", n) for kind in ("k_k", "k_a", "r_k", "ln")}
    removed, y, state_bytes = graph.buffer(n), graph.buffer(n), 4 * n * size
    graph.op(
        f"{name}.prepare", WKV_PREPARE, x.r.rows, constants=constants, chunks=(1, 4), w=x.w, k=x.k, a=x.a,
        k_k=vector["k_k"], k_a=vector["k_a"], heads=heads, removed=removed,
    )  # fmt: skip
    graph.op(
        f"{name}.recur", RECUR_WKV, x.r.rows, constants=constants, chunks=(1, 4),
        cost=CostModel(Cost(state_bytes), Cost(fmas=state_bytes)), r=x.r, w=x.w, k=x.k, v=x.v, a=x.a, removed=removed,
        heads=heads, segments=g.states.segments, state=g.states.add_layer(state_bytes), y=y,
    )  # fmt: skip
    graph.op(
        f"{name}.finish", WKV_FINISH, x.r.rows, constants=constants, chunks=(1, 4), r=x.r, k=x.k, v=x.v,
        r_k=vector["r_k"], weight=vector["ln"], bias=g.tensors.vector(f"{name}_ln.bias", n), heads=heads,
        eps=size * g.eps, y=y,
    )  # fmt: skip
    return y

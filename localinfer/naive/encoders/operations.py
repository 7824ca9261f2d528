"""What the ops of encoders compute: for each kernel a function of the op's arguments, which returns the values that the
op writes, by the name of the argument. They are written to the beginning of its memory."""

from collections.abc import Callable, Mapping

import numpy as np

from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.ops.op import Op
from localinfer.graph.recording.attention import LOG2_E
from localinfer.kernels import signatures
from localinfer.kernels.signatures import PRODUCT, KernelSignature
from localinfer.naive.encoders import gathered_rows, relative_positions, span_attention
from localinfer.naive.encoders.cumulative_norm import cumulative_norm
from localinfer.naive.encoders.op_arguments import OpArguments
from localinfer.naive.formulas import (
    ACTIVATIONS,
    Floats,
    gated_activation,
    join_heads,
    layer_norm,
    rms_norm,
    rotate_pairs,
    soft_cap,
    softmax,
    split_heads,
)

Written = Mapping[str, Floats]


# --- products ---


def product(a: OpArguments) -> Written:
    """y = base + x . w, where the base is what is in y (a residual stream), a bias, or nothing."""
    x, y = a.memory.product_input(a.op), a.rows("y")
    base = a.rows("base") if isinstance(a.given["base"], Buffer) else np.zeros_like(y[:, : a.integer("n_out")])
    base = base + a.vector("base")
    for rows, weight in a.matrix("w"):
        y[:, rows] = base[:, rows] + x @ weight.T
    return {"y": y}


# --- norms ---


def norm(a: OpArguments) -> Written:
    return {"y": rms_norm(a.rows("x"), a.table("weight", a.integer("n")), a.number("eps"))}


def normalize_layer(a: OpArguments) -> Written:
    y = layer_norm(a.rows("x"), a.table("weight", a.integer("n")), a.number("eps"))
    return {"y": y + a.vector("bias")}


def norm_groups(a: OpArguments) -> Written:
    """RMSNorm of groups of values, with weights for all of them or for each (`step`), or without."""
    count, size, each = a.integer("count"), a.integer("size"), a.integer("step") > 0
    weight = a.table("weight", count if each else 1, size) if a.has("weight") else np.ones((1, size), a.memory.dtype)
    groups = a.rows("x").reshape(a.count, count, size)
    return {"y": rms_norm(groups, weight, a.number("eps")).reshape(a.count, -1)}


def add_norm(a: OpArguments) -> Written:
    return {"x": a.rows("x") + rms_norm(a.rows("branch"), a.table("weight", a.integer("n")), a.number("eps"))}


def norm_of_all_before(a: OpArguments) -> Written:
    weight = a.table("weight", a.integer("n"))
    return {"x": cumulative_norm(a.rows("x"), a.integer("size"), weight, a.number("eps"))}


# --- rows ---


def add_bias(a: OpArguments) -> Written:
    return {"x": a.rows("x") + a.vector("bias")}


def add(a: OpArguments) -> Written:
    """The branch is rows that other ops have computed, or constants."""
    branch = a.given["branch"]
    values = a.rows("branch") if isinstance(branch, Buffer) else a.table("branch", a.count, a.integer("n"))
    return {"x": a.rows("x") + a.number("factor") * values}


def gather_rows(a: OpArguments) -> Written:
    """Rows that are side by side in y follow each other in memory, so each is gathered by itself."""
    x = a.all_rows("x").reshape(-1, a.integer("n"))
    return {"y": gathered_rows.side_by_side(x, a.numbers("numbers", a.count)[:, None])}


def average_rows(a: OpArguments) -> Written:
    numbers = a.numbers("numbers", a.count * a.integer("count")).reshape(a.count, -1)
    return {"y": gathered_rows.means(a.all_rows("x"), numbers)}


def weigh_rows(a: OpArguments) -> Written:
    width, n = a.integer("count"), a.integer("n")
    numbers = a.numbers("numbers", a.count * width).reshape(a.count, -1)
    weight = a.table("weight", width, n)
    return {"y": gathered_rows.weighted_sums(a.all_rows("x"), numbers, weight, a.vector("bias"))}


def copy_columns(a: OpArguments) -> Written:
    y, n, first, x_first = a.rows("y"), a.integer("n"), a.integer("y_first"), a.integer("x_first")
    y[:, first : first + n] = a.rows("x")[:, x_first : x_first + n]
    return {"y": y}


def transpose(a: OpArguments) -> Written:
    y, first = a.all_rows("y"), a.integer("first")
    y[:, first : first + a.count] = a.rows("x").T
    return {"y": y}


def softmax_of_columns(a: OpArguments) -> Written:
    """The values behind the first n are zeros."""
    x, n = a.rows("x"), a.integer("n")
    x[:, :n], x[:, n:] = softmax(x[:, :n]), 0
    return {"x": x}


def scale_and_cap(a: OpArguments) -> Written:
    return {"x": soft_cap(a.number("factor") * a.rows("x"), a.number("cap"))}


def clip(a: OpArguments) -> Written:
    return {"y": np.clip(a.rows("x"), a.number("low"), a.number("high"))}


def activate(a: OpArguments) -> Written:
    """act(gate), or act(gate) * up, where up is rows or factors of the columns."""
    gate, n, first = a.rows("gate"), a.integer("n"), a.integer("up_first")
    if not a.has("up"):
        return {"gate": ACTIVATIONS[a.text("activation")](gate)}
    is_rows = isinstance(a.given["up"], Buffer)
    up = a.rows("up")[:, first : first + n] if is_rows else a.table("up", 1, n)
    return {"gate": gated_activation(a.text("activation"), gate, up)}


# --- attention ---


def heads_with_positions(a: OpArguments, name: str, heads: int, size: int) -> Floats:
    """Return heads, (heads, rows, size), with their norm and rotation."""
    x, norm, eps = split_heads(a.rows(name)[:, : heads * size], heads), a.text("norm"), a.number("eps")
    n_rot = a.integer("n_rot")
    cos, sin = np.split(a.table("table", a.count, n_rot), 2, axis=1) if n_rot else (x[0, :, :0], x[0, :, :0])
    if norm == "before_rope":
        x = rms_norm(x, a.table("weight", size), eps)
    x = rotate_pairs(x, cos, sin, a.text("pairs"))
    if norm == "after_rope":
        x = rms_norm(x, a.table("weight", size), eps)
    return rms_norm(x, np.ones(size, x.dtype), eps) if norm == "unweighted" else x


def rope(a: OpArguments) -> Written:
    """Heads are padded with zeros to the size that attention reads."""
    size, dim = a.integer("size"), a.integer("dim")
    x = heads_with_positions(a, "x", a.integer("heads"), size)
    return {"y": join_heads(np.pad(x, ((0, 0), (0, 0), (0, dim - size))))}


def append(a: OpArguments) -> Written:
    """Keys with their positions, and values, go to the cache: (heads, rows, size)."""
    heads = a.integer("heads")
    values = split_heads(a.rows("v")[:, : heads * a.integer("value_size")], heads)
    return {"k_cache": heads_with_positions(a, "k", heads, a.integer("key_size")), "v_cache": values}


def attention(a: OpArguments) -> Written:
    """Attention of queries, which may be padded, to the keys in the cache. Several heads of queries may share one."""
    k, v = (np.repeat(a.heads(name), a.integer("group"), axis=0) for name in ("k_cache", "v_cache"))
    q = split_heads(a.rows("q"), len(k))[..., : k.shape[2]] * a.number("scale")
    spans = a.numbers("oldest", a.count), a.numbers("newest", a.count)
    cap = a.number("cap") / LOG2_E  # the kernel computes powers of two
    return {"y": join_heads(span_attention.attend(q, k, v, spans, cap))}


def relative_attention(a: OpArguments) -> Written:
    """Attention to spans of rows. Keys and position vectors are transposed, [head][size][row]; heads have position
    vectors of their own (`p_step`), share them, or have none."""
    heads, size, scale = a.integer("heads"), a.integer("size"), a.number("scale")
    spans = [*zip(*(a.numbers(name, a.count).tolist() for name in ("oldest", "newest")), strict=True)]
    n_keys = 1 + max(newest for _, newest in spans)
    q, v = (a.all_rows(name).reshape(-1, heads, size) for name in ("q", "v"))
    y, columns = np.zeros((a.count, heads, size), q.dtype), a.all_rows("k")
    none = np.zeros((heads, size), q.dtype)
    biases = [a.table(name, heads, size) if a.has(name) else none for name in ("bias_u", "bias_v")]
    for head in range(heads):
        keys = columns[head * size : (head + 1) * size, :n_keys].T
        queries = [scale * (q[: a.count, head] + bias[head]) for bias in biases]
        if a.has("p"):
            vectors = position_vectors(a, head, size)
            y[:, head] = span_attention.attend_with_distances(
                (queries[0], queries[1]), keys, v[:, head], vectors, a.integer("first"), spans, a.number("cap")
            )
        else:
            oldest, newest = (np.array(each, np.int32) for each in zip(*spans, strict=True))
            one = queries[0][None], keys[None], v[None, :, head]
            y[:, head] = span_attention.attend(*one, (oldest, newest), a.number("cap"))[0]
    return {"y": y.reshape(a.count, -1)}


def position_vectors(a: OpArguments, head: int, size: int) -> Floats:
    """Return the position vectors of a head, (vectors, size)."""
    step, stride = a.integer("p_step"), a.integer("p_stride")
    if isinstance(a.given["p"], Buffer):
        return a.all_rows("p")[head * step : head * step + size].T
    return a.table("p", size, stride).T


def add_dimensions(a: OpArguments) -> Written:
    """Queries and keys with relative positions, padded with zeros."""
    heads, size, dim = a.integer("heads"), a.integer("size"), a.integer("dim")
    grid = a.integer("height"), a.integer("width")
    tables = a.table("by_row", 2 * grid[0] - 1, size), a.table("by_column", 2 * grid[1] - 1, size)
    q, k = (a.rows(name).reshape(a.count, heads, size) for name in "qk")
    longer = relative_positions.with_positions(q, k, tables, grid, a.number("factor"))
    padded = [np.pad(each, ((0, 0), (0, 0), (0, dim - each.shape[2]))).reshape(a.count, -1) for each in longer]
    return {"q_out": padded[0], "k_out": padded[1]}


def nothing(a: OpArguments) -> Written:  # noqa: ARG001 (one signature for all)
    """Quantized activations, and the sums that attention has already added up here."""
    return {}


OPERATIONS: Mapping[KernelSignature, Callable[[OpArguments], Written]] = {
    signatures.TO_BF16: nothing,
    signatures.QUANTIZE: nothing,
    signatures.RMS_NORM: norm,
    signatures.LAYER_NORM: normalize_layer,
    signatures.NORM_GROUPS: norm_groups,
    signatures.CUMULATIVE_NORM: norm_of_all_before,
    signatures.ADD_BIAS: add_bias,
    signatures.ADD: add,
    signatures.ADD_NORM: add_norm,
    signatures.GATHER_ROWS: gather_rows,
    signatures.AVERAGE_ROWS: average_rows,
    signatures.WEIGH_ROWS: weigh_rows,
    signatures.SOFTMAX: softmax_of_columns,
    signatures.SOFT_CAP: scale_and_cap,
    signatures.CLIP: clip,
    signatures.GATED_ACTIVATION: activate,
    signatures.COPY: copy_columns,
    signatures.TRANSPOSE: transpose,
    signatures.RELATIVE_POSITIONS: add_dimensions,
    signatures.ROPE: rope,
    signatures.APPEND: append,
    signatures.ATTENTION: attention,
    signatures.COMBINE: nothing,
    signatures.RELATIVE_ATTENTION: relative_attention,
}
BY_KERNEL = {signature.small_batch: signature for signature in OPERATIONS}


def signature_of(op: Op) -> KernelSignature:
    """Return the signature of an op. All products have that of PRODUCT."""
    kernel = op.small_batch
    return PRODUCT if kernel.parameters == PRODUCT.parameters else BY_KERNEL[f"{kernel.module}:{kernel.function}"]


def compute(a: OpArguments) -> Written:
    """Return what an op writes, by the name of the argument."""
    signature = signature_of(a.op)
    return product(a) if signature == PRODUCT else OPERATIONS[signature](a)

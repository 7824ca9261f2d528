"""The layers of a vision transformer (Dosovitskiy et al., 2020), and the networks that project its output."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.properties.attention import AttentionSpec
from localinfer.multimodal.encoder_graph.encoder_builder import EncoderBuilder
from localinfer.multimodal.encoder_graph.matrices import (
    matrix_of,
    n_rows_of,
    padded_length,
    padded_product,
    product_of_padded,
)

FULL_ATTENTION = AttentionSpec()
DOWN_PROJECTION = re.compile(r"ffn_down|ffn_up|mlp\.lin2")  # files of older converters name it ffn_up
OnLayer = Callable[[int, Buffer], None]  # receives the residual stream after a layer


def activation(g: EncoderBuilder, gelu: str = "gelu") -> str:
    """Return the activation of the feed-forward networks that the file's flags select. `gelu` is the kind of GELU,
    which they do not tell."""
    use_gelu, use_silu = (g.f.get(f"clip.use_{name}", bool, False) for name in ("gelu", "silu"))
    if use_gelu and use_silu:
        raise g.f.error("clip.use_silu", "is true, and so is clip.use_gelu")
    return gelu if use_gelu else "silu" if use_silu else "gelu_quick"


def transform(
    g: EncoderBuilder, x: Buffer, act: str, spec: AttentionSpec = FULL_ATTENTION, *,
    windows: Sequence[int] = (), n_layers: int = 0, first_layer: int = 0, on_layer: OnLayer | None = None,
) -> None:  # fmt: skip
    """Apply the first `n_layers` layers, or all, to the residual stream, without those before `first_layer`. A layer
    with an entry in `windows` other than 0 attends to windows of that size."""
    for number, blk in enumerate(g.layers(x, n_layers, first_layer), first_layer):
        window = windows[number] if windows else 0
        h = g.norm(x, f"{blk}ln1")
        attended = attend(g, h, blk, replace(spec, window=window) if window else spec)
        add_branch(g, x, attended, f"{blk}attn_out", f"{blk}ls1.weight")
        g.point(x, f"{blk}resid_mid")
        layer_network(g, x, blk, act)
        if on_layer:
            on_layer(number, x)


def attend(g: EncoderBuilder, h: Buffer, blk: str, spec: AttentionSpec) -> Buffer:
    """Return the input of attn_out: bidirectional attention of all rows of h, or of those in a window."""
    heads = g.heads
    q_n, k_n, v_n = heads.count * heads.key, heads.count_kv * heads.key, heads.count_kv * heads.value
    if g.tensors.has(f"{blk}attn_qkv.weight"):
        q, k, v = g.slices(h, f"{blk}attn_qkv", q_n, k_n, v_n)
        for name, x in zip("qkv", (q, k, v), strict=True):
            g.point(x, f"{blk}attn_{name}")
    else:
        q, k, v = g.matmuls(h, (f"{blk}attn_q", q_n), (f"{blk}attn_k", k_n), (f"{blk}attn_v", v_n))
    return g.attention.attend(blk, q, k, v, spec)


def add_branch(
    g: EncoderBuilder, x: Buffer, h: Buffer, matrix: str, layer_scale: str = "", n_in: int = 0
) -> None:
    """Add the product of h and a matrix to x, scaled column by column if the file has a layer scale. The matrix has
    `n_in` columns, if these are not those of h."""
    n_in = n_in or h.n
    if not g.tensors.has(layer_scale):
        product_of_padded(g, h, matrix, n_in, x.n, add_to=x)
        return
    branch = product_of_padded(g, h, matrix, n_in, x.n)
    g.scale_columns(branch, layer_scale)
    g.add(x, branch)


def hidden_units(g: EncoderBuilder, h: Buffer, names: Sequence[str], down: str, act: str) -> Buffer:
    """Return the hidden units of a feed-forward network, the input of `down`: act(gate . h) * (up . h), or act(up . h),
    with columns of zeros up to the number that kernels read. `names` are up, and gate if there is one."""
    up, *gates = names
    rows = n_rows_of(g, up)
    n = padded_length(g, down, rows)
    y = padded_product(g, h, up, rows, n)
    units = g.gate(padded_product(g, h, gates[0], rows, n), y, act) if gates else g.gate(y, None, act)
    name_units(g, units, down, rows)
    return units


def name_units(g: EncoderBuilder, units: Buffer, down: str, n: int) -> None:
    """Name the first n hidden units of a layer's network. Without a point are those of projectors."""
    if (name := DOWN_PROJECTION.sub("ffn_act", down)) != down:
        g.model.points.add(name, units, size=n)


def layer_network(g: EncoderBuilder, x: Buffer, blk: str, act: str) -> None:
    """Add the feed-forward network of a layer, which has a gate if the file has one."""
    h, up, gate, down = g.norm(x, f"{blk}ln2"), f"{blk}ffn_up", f"{blk}ffn_gate", f"{blk}ffn_down"
    if matrix_of(g, up).shape[-1] != x.n == matrix_of(g, down).shape[-1]:
        up, down = down, up  # in files of older converters
    names = [up, gate] if g.tensors.has(f"{gate}.weight") else [up]
    add_branch(g, x, hidden_units(g, h, names, down, act), down, f"{blk}ls2.weight", n_rows_of(g, up))


def two_layers(
    g: EncoderBuilder, x: Buffer, first: str, second: str, act: str, *, n_out: int = 0, out: Buffer | None = None
) -> Buffer:
    """Return second . act(first . x), rows of `n_out` values, or of as many as the second matrix has rows; in the first
    rows of `out` if it is given."""
    n_hidden, hidden = n_rows_of(g, first), hidden_units(g, x, [first], second, act)
    return product_of_padded(g, hidden, second, n_hidden, n_out or n_rows_of(g, second), out=out)

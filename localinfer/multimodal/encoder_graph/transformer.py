"""The layers of a vision transformer (Dosovitskiy et al., 2020), and the networks that project its output."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.properties.attention import AttentionSpec
from localinfer.multimodal.encoder_graph.encoder_builder import FULL_ATTENTION, EncoderBuilder

OnLayer = Callable[[int, Buffer], None]  # receives the residual stream after a layer


def activation(g: EncoderBuilder) -> str:
    """Return the activation of the feed-forward networks that the file's flags select."""
    use_gelu, use_silu = (g.f.get(f"clip.use_{name}", bool, False) for name in ("gelu", "silu"))
    if use_gelu and use_silu:
        raise g.f.error("clip.use_silu", "is true, and so is clip.use_gelu")
    return "gelu" if use_gelu else "silu" if use_silu else "gelu_quick"


def transform(
    g: EncoderBuilder, x: Buffer, act: str, spec: AttentionSpec = FULL_ATTENTION, *,
    windows: Sequence[int] = (), n_layers: int = 0, on_layer: OnLayer | None = None,
) -> None:  # fmt: skip
    """Apply the first `n_layers` layers, or all, to the residual stream. A layer with an entry in `windows` other than
    0 attends to windows of that size."""
    for number, blk in enumerate(g.layers(n_layers)):
        window = windows[number] if windows else 0
        h = g.norm(x, f"{blk}ln1")
        attended = g.attention(h, blk, replace(spec, window=window) if window else spec)
        add_branch(g, x, attended, f"{blk}attn_out", f"{blk}ls1.weight")
        h = g.norm(x, f"{blk}ln2")
        add_branch(g, x, hidden_units(g, h, blk, act), f"{blk}ffn_down", f"{blk}ls2.weight")
        if on_layer:
            on_layer(number, x)


def add_branch(g: EncoderBuilder, x: Buffer, h: Buffer, matrix: str, layer_scale: str) -> None:
    """Add the product of h and a matrix to x, scaled column by column if the file has a layer scale."""
    if not g.tensors.has(layer_scale):
        g.matmul(h, matrix, x.n, add_to=x)
        return
    branch = g.matmul(h, matrix, x.n)
    g.scale_columns(branch, layer_scale)
    g.add(x, branch)


def hidden_units(g: EncoderBuilder, h: Buffer, blk: str, act: str) -> Buffer:
    """Return the hidden units of a feed-forward network, the input of ffn_down: act(gate . h) * (up . h), or
    act(up . h) if the file has no gate."""
    n = g.n_rows_of(f"{blk}ffn_up")
    if not g.tensors.has(f"{blk}ffn_gate.weight"):
        return g.gate(g.matmul(h, f"{blk}ffn_up", n), None, act)
    return g.gate(g.matmul(h, f"{blk}ffn_gate", n, barrier=False), g.matmul(h, f"{blk}ffn_up", n), act)


def two_layers(g: EncoderBuilder, x: Buffer, first: str, second: str, act: str) -> Buffer:
    """Return second . act(first . x), the output rows of the encoder."""
    hidden = g.gate(g.matmul(x, first, g.n_rows_of(first)), None, act)
    return g.matmul(hidden, second, g.n_rows_of(second))

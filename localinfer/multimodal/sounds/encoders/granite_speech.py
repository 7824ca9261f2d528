"""Granite Speech (IBM, 2025): a conformer whose rows attend to those of their block (Shaw et al., 2018), with its own
recognition of characters added in the middle, and a Q-Former, which makes 10 rows of each second. The Q-Former of
Granite Speech Plus reads the outputs of several layers."""

import numpy as np

from localinfer.graph.ops.buffers import Buffer
from localinfer.kernels.signatures import SOFTMAX
from localinfer.multimodal.encoder_graph.matrices import n_rows_of, padded_length, padded_product, product_of_padded
from localinfer.multimodal.sounds.arrangement import enclose
from localinfer.multimodal.sounds.depthwise import Taps, convolve, make_taps, over_time
from localinfer.multimodal.sounds.encoders.conformer import MAX_WIDTH, feed_forward
from localinfer.multimodal.sounds.framing import ALL_FRAMES, Floats, Framing
from localinfer.multimodal.sounds.granite_mel import GraniteProcessor
from localinfer.multimodal.sounds.q_former import query_windows
from localinfer.multimodal.sounds.sound_builder import SoundBuilder
from localinfer.multimodal.sounds.span_attention import SpanAttention, blocks_of_rows

SoundProcessor = GraniteProcessor
ARCHITECTURES = ("granite", "granitehybrid")
FRAMING = Framing(window=ALL_FRAMES, halvings=0, rate=50)
MAX_BLOCK = 1 << 12
NORMS = ("conv_norm", "conv_norm_var")  # the converter of some versions of llama.cpp writes the second name
arrange = enclose("", "")


def prepare(features: Floats, lengths: list[int]) -> Floats:
    """Return the rows of the spectrogram."""
    return features[: sum(lengths)]


def build(g: SoundBuilder) -> Buffer:
    """A matrix, the layers with the recognition in the middle, and the Q-Former."""
    g.use_layer_norm()
    size = g.hparams.count("chunk_size", maximum=MAX_BLOCK)
    width = g.hparams.count("conv_kernel_size", maximum=MAX_WIDTH)
    attention = SpanAttention.make(g, g.heads, blocks_of_rows(g.graph.batch, size))
    taps = make_taps(g, over_time(g.graph.batch, width // 2, (width - 1) // 2), g.graph.batch)
    x = g.project("a.input_projection", g.embedding_length, g.n_bands)
    kept = kept_layers(g)
    outputs = g.graph.buffer(x.n * (len(kept) + 1)) if kept else x
    if 0 in kept:
        g.copy_columns(x, outputs, 0)
    for number, blk in enumerate(g.layers(x), 1):
        feed_forward(g, x, f"{blk}ffn_norm", f"{blk}ffn_up", f"{blk}ffn_down")
        attend(g, x, blk, attention, size)
        convolution_module(g, x, blk, taps)
        feed_forward(g, x, f"{blk}ffn_norm_1", f"{blk}ffn_up_1", f"{blk}ffn_down_1")
        g.norm(x, f"{blk}ln2", in_place=True)
        if number == g.block_count // 2:
            add_characters(g, x)
        if number in kept:
            g.copy_columns(x, outputs, x.n * kept.index(number))
    if kept:
        g.copy_columns(x, outputs, x.n * len(kept))
    return g.matmul(query_windows(g, outputs), "a.proj_linear", g.output_length)


def kept_layers(g: SoundBuilder) -> list[int]:
    """Return the numbers of the layers whose outputs the Q-Former reads beside that of the last, which it always reads;
    0 stands for the input of the first."""
    key = "feature_layer"
    if not g.hparams.has(key):
        return []
    found = g.f.metadata[g.hparams.full_name(key)]
    numbers = found.tolist() if isinstance(found, np.ndarray) else [found]
    if not all(type(number) is int and 0 <= number <= g.block_count for number in numbers):
        raise g.hparams.error(key, f"must be numbers of layers up to {g.block_count}")
    return sorted(set(numbers))


def attend(g: SoundBuilder, x: Buffer, blk: str, attention: SpanAttention, size: int) -> None:
    """Add the attention of rows to those of their block. The table has a vector for each distance."""
    h, n = g.norm(x, f"{blk}ln1"), g.heads.count * g.heads.key
    q, k, v = (g.matmul(h, f"{blk}attn_{name}", n) for name in "qkv")
    farthest = g.hparams.count("max_pos_emb", minimum=size, maximum=1 << 16)
    table = g.tensors.values(f"{blk}attn_rel_pos_emb", 2 * farthest + 1, g.heads.key)
    y = attention.attend(blk, (q, k, v), table[farthest + size - 1 : farthest - size : -1])
    g.matmul(y, f"{blk}attn_out", x.n, add_to=x)


def convolution_module(g: SoundBuilder, x: Buffer, blk: str, taps: Taps) -> None:
    """Add a gated depthwise convolution over time, whose rows may be longer than those of x."""
    n = n_rows_of(g, f"{blk}conv_pw1") // 2
    value, gate = g.slices(g.norm(x, f"{blk}norm_conv"), f"{blk}conv_pw1", n, n)
    h = g.gate(gate, value, "sigmoid")
    norm = next((name for name in NORMS if g.tensors.has(f"{blk}{name}.weight")), NORMS[0])
    weights = g.tensors.depthwise(f"{blk}conv_dw", n, taps.width, norm=f"{blk}{norm}")
    h = g.gate(convolve(g, h, *weights, taps), None, "silu")
    g.matmul(h, f"{blk}conv_pw2", x.n, add_to=x)


def add_characters(g: SoundBuilder, x: Buffer) -> None:
    """Add a matrix times the probabilities of characters."""
    out, middle = "a.enc_ctc_out", "a.enc_ctc_out_mid"
    count = n_rows_of(g, out)
    h = padded_product(g, x, out, count, padded_length(g, middle, count))
    g.graph.op("softmax", SOFTMAX, h.rows, chunks=(1, 8), n=count, stride=h.n, x=h)
    product_of_padded(g, h, middle, count, x.n, add_to=x)

"""The oracle: the forward passes of `llama`, `gemma3`, `qwen2` and `qwen3` in plain numpy, written to be read.

Every weight is dequantized to `dtype` (float64 by default) and every operation is computed in it; nothing is
rounded, cached, blocked or fused. Knows no kernel of `quant` and no engine: files are opened by
`localinfer.files.gguf`, blocks are decoded by the `gguf` package.

    model = naive.Model(open_gguf(path))
    logits = naive.forward(model, tokens)           # (n_tokens, n_vocab)
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import gguf
import numpy as np
from numpy.typing import DTypeLike, NDArray

from localinfer.files.gguf import GGUF

Floats = NDArray[np.floating[Any]]  # of the model's dtype
Positions = NDArray[np.integer[Any]]

SWA_FREQ_BASE = 10_000.0  # rope base of gemma3's sliding layers, where the file does not say
SWA_PATTERN = 6  # of six layers of gemma3, the last one sees the whole context


class Model:
    """A file's hyperparameters, and its weights as plain matrices (decoded at first use, then kept)."""

    def __init__(self, file: GGUF, dtype: DTypeLike = np.float64) -> None:
        self.file, self.dtype = file, np.dtype(dtype)
        self.weights: dict[str, Floats] = {}
        self.architecture = str(file.metadata["general.architecture"])
        self.n_layer = int(self.hyper("block_count"))
        self.n_embd = int(self.hyper("embedding_length"))
        self.n_head = int(self.hyper("attention.head_count"))
        self.n_head_kv = int(self.hyper("attention.head_count_kv", self.n_head))
        self.head_size = int(self.hyper("attention.key_length", self.n_embd // self.n_head))
        self.eps = self.hyper("attention.layer_norm_rms_epsilon")
        self.freq_base = self.hyper("rope.freq_base", 10_000.0)
        self.slowed = self.slowing()
        largest_gemma = self.architecture == "gemma3" and self.n_layer == 62
        self.query_size = self.n_embd / self.n_head if largest_gemma else self.head_size
        self.n_ctx = self.sinks = 0  # if set, the policy `ring`: see attention

    def hyper(self, key: str, default: float | None = None) -> float:
        """The file's `<architecture>.<key>`."""
        value = self.file.metadata.get(f"{self.architecture}.{key}", default)
        assert isinstance(value, int | float), f"{self.architecture}.{key} is missing"
        return value

    def slowing(self) -> float | Floats:
        """What the frequencies of layers that see everything are divided by: a number, or one for each pair."""
        linear = self.file.metadata.get(f"{self.architecture}.rope.scaling.type") == "linear"
        slowed = self.hyper("rope.scaling.factor") if linear else 1.0
        return slowed * self["rope_freqs"] if "rope_freqs.weight" in self.file.tensors else slowed

    def __getitem__(self, name: str) -> Floats:
        """The tensor `<name>.weight`, rows first: a matrix is (n_out, n_in)."""
        if name not in self.weights:
            self.weights[name] = self.rows(name).astype(self.dtype)
        return self.weights[name]

    def bias(self, name: str) -> Floats:
        """The tensor `<name>.bias`: (n_out,)"""
        return self.file.tensors[f"{name}.bias"].data.view(np.float32).astype(self.dtype)

    def rows(self, name: str, rows: slice | NDArray[np.int64] = slice(None)) -> NDArray[np.float32]:
        """Some rows of a tensor, decoded and not kept."""
        tensor = self.file.tensors[f"{name}.weight"]
        bytes_of_rows = tensor.data.reshape(*tensor.shape[:-1], -1)[rows]
        return gguf.dequantize(bytes_of_rows, gguf.GGMLQuantizationType(tensor.type))

    # What a computer with less precision would do differently: subclasses round here.

    def matmul(self, name: str, x: Floats) -> Floats:
        """(n, n_in) -> (n, n_out)"""
        return x @ self[name].T

    def remember(self, kv: Floats) -> Floats:
        """Keys or values on their way into the cache."""
        return kv


def forward(model: Model, tokens: Sequence[int]) -> Floats:
    """Logits after each of `tokens`, which stand at positions 0, 1, ...: (n_tokens, n_vocab)."""
    return np.concatenate([*output(model, hidden(model, tokens))], axis=1)


def hidden(model: Model, tokens: Sequence[int]) -> Floats:
    """What the last layer hands to the output layer: (n_tokens, n_embd)."""
    block = gemma3_block if model.architecture == "gemma3" else llama_block
    x = model.rows("token_embd", np.asarray(tokens)).astype(model.dtype)
    if model.architecture == "gemma3":
        x = x * np.float32(math.sqrt(model.n_embd))
    for i in range(model.n_layer):
        x = block(model, i, x)
    return rms_norm(x, model["output_norm"], model.eps)


def output(model: Model, x: Floats, chunk: int = 16_384) -> Iterator[Floats]:
    """The logits, `chunk` words of the vocabulary at a time: (n_tokens, chunk)."""
    name = "output" if "output.weight" in model.file.tensors else "token_embd"
    n_vocab = model.file.tensors[f"{name}.weight"].shape[0]
    for start in range(0, n_vocab, chunk):
        model.weights["output chunk"] = model.rows(name, slice(start, start + chunk)).astype(model.dtype)
        yield model.matmul("output chunk", x)


def llama_block(model: Model, i: int, x: Floats) -> Floats:
    """One layer, of qwen2 and qwen3 too: (n_tokens, n_embd) -> the same."""
    blk = f"blk.{i}."
    h = rms_norm(x, model[blk + "attn_norm"], model.eps)
    x = x + attention(model, blk, h, model.freq_base, model.slowed)
    h = rms_norm(x, model[blk + "ffn_norm"], model.eps)
    gated = silu(model.matmul(blk + "ffn_gate", h)) * model.matmul(blk + "ffn_up", h)
    return x + model.matmul(blk + "ffn_down", gated)


def gemma3_block(model: Model, i: int, x: Floats) -> Floats:
    """One layer: (n_tokens, n_embd) -> the same.  All layers but the last of each six look back over a window only."""
    blk = f"blk.{i}."
    freq_base, slowed, window = model.freq_base, model.slowed, 0
    if (i + 1) % model.hyper("attention.sliding_window_pattern", SWA_PATTERN) != 0:
        freq_base, slowed = model.hyper("rope.freq_base_swa", SWA_FREQ_BASE), 1.0
        window = int(model.hyper("attention.sliding_window"))
    a = attention(model, blk, rms_norm(x, model[blk + "attn_norm"], model.eps), freq_base, slowed, window)
    x = x + rms_norm(a, model[blk + "post_attention_norm"], model.eps)
    h = rms_norm(x, model[blk + "ffn_norm"], model.eps)
    gated = gelu(model.matmul(blk + "ffn_gate", h)) * model.matmul(blk + "ffn_up", h)
    return x + rms_norm(model.matmul(blk + "ffn_down", gated), model[blk + "post_ffw_norm"], model.eps)


def attention(
    model: Model, blk: str, x: Floats, freq_base: float, slowed: float | Floats = 1.0, window: int = 0
) -> Floats:
    """Every position looks at itself and at those before it (`window` in all, if not 0).

    With the policy `ring`, layers without a window have one of n_ctx - sinks, and look at the first `sinks`
    positions as well, as if from the end of the context.
    """
    q, k, v = (model.matmul(blk + name, x) for name in ("attn_q", "attn_k", "attn_v"))
    if model.architecture == "qwen2":
        q, k, v = q + model.bias(blk + "attn_q"), k + model.bias(blk + "attn_k"), v + model.bias(blk + "attn_v")
    q = heads(q, model.n_head)  # (n_head, n_tokens, head_size)
    k, v = heads(k, model.n_head_kv), heads(v, model.n_head_kv)
    if model.architecture in ("gemma3", "qwen3"):
        q = rms_norm(q, model[blk + "attn_q_norm"], model.eps)
        k = rms_norm(k, model[blk + "attn_k_norm"], model.eps)
    rope = rope_pairs if model.architecture == "llama" else rope_halves
    position = np.arange(x.shape[0])

    k, v = model.remember(rope(k, position, freq_base, slowed)), model.remember(v)
    group = model.n_head // model.n_head_kv  # so many query heads share one key and value head
    k, v = np.repeat(k, group, axis=0), np.repeat(v, group, axis=0)
    scores = rope(q, position, freq_base, slowed) @ k.transpose(0, 2, 1)  # (n_head, n_tokens, n_tokens)
    if window == 0 and model.n_ctx:
        window, near = model.n_ctx - model.sinks, np.minimum(position, model.n_ctx - 1)
        scores[..., : model.sinks] = rope(q, near, freq_base, slowed) @ k[:, : model.sinks].transpose(0, 2, 1)
        seen = visible(position, window, model.sinks)
    else:
        seen = visible(position, window)
    mixed = softmax(np.where(seen, scores / math.sqrt(model.query_size), -np.inf)) @ v
    return model.matmul(blk + "attn_output", mixed.transpose(1, 0, 2).reshape(x.shape[0], -1))


def heads(x: Floats, n: int) -> Floats:
    """(n_tokens, n * head_size) -> (n, n_tokens, head_size)"""
    return x.reshape(x.shape[0], n, -1).transpose(1, 0, 2)


def visible(position: Positions, window: int, sinks: int = 0) -> NDArray[np.bool_]:
    """Whether a position (row) may look at one (column): less than `window` back, not ahead; or a sink."""
    back = position[:, None] - position[None, :]
    return (back >= 0) & ((window == 0) | (back < window) | (position < sinks))


def turn(position: Positions, size: int, freq_base: float, slowed: float | Floats) -> NDArray[np.complex128]:
    """The rotations of each position, a column a pair: (n_tokens, size / 2)"""
    frequency = freq_base ** (-2.0 * np.arange(size // 2) / size) / slowed
    return np.exp(1j * position[:, None] * frequency)


def rope_pairs(x: Floats, position: Positions, freq_base: float, slowed: float | Floats = 1.0) -> Floats:
    """Rotate neighbours, (0, 1), (2, 3), ...: the order of the rows of attn_q and attn_k in `llama` files."""
    rotation = turn(position, x.shape[-1], freq_base, slowed)
    cos, sin = rotation.real.astype(x.dtype), rotation.imag.astype(x.dtype)
    a, b = x[..., 0::2], x[..., 1::2]
    return np.stack([a * cos - b * sin, a * sin + b * cos], axis=-1).reshape(x.shape)


def rope_halves(x: Floats, position: Positions, freq_base: float, slowed: float | Floats = 1.0) -> Floats:
    """Rotate an element of the first half with its partner in the second."""
    rotation = turn(position, x.shape[-1], freq_base, slowed)
    cos, sin = rotation.real.astype(x.dtype), rotation.imag.astype(x.dtype)
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def rms_norm(x: Floats, weight: Floats, eps: float) -> Floats:
    """Scale the last axis to a mean square of one."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + x.dtype.type(eps)) * weight


def softmax(x: Floats) -> Floats:
    """Over the last axis."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def silu(x: Floats) -> Floats:
    """x * sigmoid(x), in a form that does not overflow."""
    return x * 0.5 * (1.0 + np.tanh(0.5 * x))


def gelu(x: Floats) -> Floats:
    """The tanh approximation, which is what gemma3 was trained with."""
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * x * (1.0 + 0.044715 * x * x)))

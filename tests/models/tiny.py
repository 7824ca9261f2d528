"""Tiny valid models with random weights, written by the `gguf` package: few layers, few hundred tokens.

    tiny_llama(path)                                                  # 2 layers, everything Q8_0
    tiny_llama(path, type="Q4_K", n_layer=3)                          # other dimensions and formats
    tiny_llama(path, **{"blk.0.attn_v.weight": "Q6_K"})               # one tensor in another format
    tiny_llama(path, **{"blk.0.attn_q.weight": None})                 # ... or missing
    tiny_llama(path, **{"blk.0.attn_q.weight": np.ones((3, 256))})    # ... or with these values, in F32
    tiny_gemma3(path, **{"gemma3.attention.head_count": 0})           # a wrong number (u32)
    tiny_gemma3(path, **{"gemma3.rope.freq_base": Field("STRING", "?")})  # a wrong type
    tiny_gemma3(path, **{"tokenizer.ggml.model": None})               # a missing key

An override whose name ends in ".weight" or ".bias" is a tensor, one that names a field of Dimensions a size,
any other one a metadata key. The same seed gives the same file. Shapes are numpy's, (n_out, n_in).
Independent of localinfer's code.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType
from numpy.typing import NDArray
from random_blocks import random_rows

from quant.ggml import TYPE_NUMBERS, TYPES

Floats: TypeAlias = NDArray[np.float32]
Scalar: TypeAlias = int | float | bool | str | bytes


class Field(NamedTuple):
    """A metadata value of exactly this GGUF type; `element` is the type of the values of an ARRAY."""

    type: str
    value: Scalar | Sequence[Scalar]
    element: str | None = None


class Stored(NamedTuple):
    """A tensor's bytes, (n_rows, bytes of a row), in the format of this name."""

    type: str
    data: NDArray[np.uint8]


Metadatum: TypeAlias = Field | Scalar | Sequence[Scalar] | None  # None: leave it out
Weights: TypeAlias = Stored | Floats | str | None  # values, or the name of another format, or leave it out


@dataclass(frozen=True, kw_only=True)
class Dimensions:
    """The sizes that shape a model; the vocabulary's size comes from its tokens."""

    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_ctx: int = 512
    sliding_window: int = 0
    tied: bool = True  # the output layer is token_embd, not output.weight


LLAMA = Dimensions(n_layer=2, n_embd=256, n_ff=512, n_head=4, n_head_kv=2, head_dim=64)
GEMMA3 = replace(LLAMA, n_layer=7, sliding_window=16)  # heads of the same shape need the same attention kernels


def tiny_llama(path: Path, *, seed: int = 0, type: str = "Q8_0", **overrides: Any) -> Path:
    """Write a `llama` model with byte-level BPE."""
    dimensions, changes = _split(LLAMA, overrides)
    vocabulary = bpe_vocabulary()
    metadata = common_metadata("llama", dimensions) | {
        "llama.rope.freq_base": 10000.0,
        "llama.rope.dimension_count": dimensions.head_dim,
        "llama.vocab_size": n_tokens(vocabulary),
    }
    shapes = common_shapes(dimensions, n_tokens(vocabulary))
    return _write(path, metadata | vocabulary, shapes, type, seed, changes)


def tiny_qwen2(path: Path, *, seed: int = 0, type: str = "Q8_0", **overrides: Any) -> Path:
    """Write a `qwen2` model with byte-level BPE and biases of queries, keys and values."""
    dimensions, changes = _split(LLAMA, overrides)
    heads = {"q": dimensions.n_head, "k": dimensions.n_head_kv, "v": dimensions.n_head_kv}
    biases: dict[str, tuple[int, ...]] = {
        f"blk.{layer}.attn_{name}.bias": (n * dimensions.head_dim,)
        for layer in range(dimensions.n_layer)
        for name, n in heads.items()
    }
    return _write_qwen(path, "qwen2", dimensions, biases, type, seed, changes)


def tiny_qwen3(path: Path, *, seed: int = 0, type: str = "Q8_0", **overrides: Any) -> Path:
    """Write a `qwen3` model with byte-level BPE and norms of the heads of queries and keys."""
    dimensions, changes = _split(LLAMA, overrides)
    norms: dict[str, tuple[int, ...]] = {
        f"blk.{layer}.attn_{name}_norm.weight": (dimensions.head_dim,)
        for layer in range(dimensions.n_layer)
        for name in "qk"
    }
    return _write_qwen(path, "qwen3", dimensions, norms, type, seed, changes)


def _write_qwen(
    path: Path,
    architecture: str,
    d: Dimensions,
    extra_shapes: Mapping[str, tuple[int, ...]],
    format_name: str,
    seed: int,
    changes: "Changes",
) -> Path:
    vocabulary = bpe_vocabulary() | {"tokenizer.ggml.pre": Field("STRING", "qwen2")}
    metadata = common_metadata(architecture, d) | {
        f"{architecture}.attention.key_length": d.head_dim,
        f"{architecture}.attention.value_length": d.head_dim,
        f"{architecture}.rope.freq_base": 1000000.0,
    }
    shapes = common_shapes(d, n_tokens(vocabulary)) | extra_shapes
    return _write(path, metadata | vocabulary, shapes, format_name, seed, changes)


def tiny_qwen3moe(path: Path, *, seed: int = 0, type: str = "Q8_0", **overrides: Any) -> Path:
    """Write a `qwen3moe` model: as qwen3, with ten experts, each of them `n_ff` wide, of which three are active per
    token.
    """
    dimensions, changes = _split(LLAMA, overrides)
    own: dict[str, tuple[int, ...]] = {}
    for layer in range(dimensions.n_layer):
        blk, n, n_ff = f"blk.{layer}.", dimensions.n_embd, dimensions.n_ff
        own |= {f"{blk}attn_{name}_norm.weight": (dimensions.head_dim,) for name in "qk"}
        own |= {f"{blk}ffn_{name}_exps.weight": (EXPERTS, n_ff, n) for name in ("gate", "up")}
        own |= {f"{blk}ffn_down_exps.weight": (EXPERTS, n, n_ff), f"{blk}ffn_gate_inp.weight": (EXPERTS, n)}
        changes.tensors.update({f"{blk}ffn_{name}.weight": None for name in ("gate", "up", "down")})
        changes.tensors.setdefault(f"{blk}ffn_gate_inp.weight", "F32")
    experts = {"expert_count": EXPERTS, "expert_used_count": 3, "expert_feed_forward_length": dimensions.n_ff}
    metadata = {f"qwen3moe.{key}": value for key, value in experts.items()} | changes.metadata
    return _write_qwen(path, "qwen3moe", dimensions, own, type, seed, Changes(metadata, changes.tensors))


EXPERTS = 10


def tiny_gemma3(path: Path, *, seed: int = 0, type: str = "Q8_0", **overrides: Any) -> Path:
    """Write a `gemma3` model with SentencePiece tokens: layer 5 is global, the others have the window."""
    dimensions, changes = _split(GEMMA3, overrides)
    vocabulary = spm_vocabulary()
    metadata = common_metadata("gemma3", dimensions) | {
        "gemma3.attention.key_length": dimensions.head_dim,
        "gemma3.attention.value_length": dimensions.head_dim,
        "gemma3.rope.freq_base": 1000000.0,
        "gemma3.attention.sliding_window": dimensions.sliding_window,
    }
    shapes = common_shapes(dimensions, n_tokens(vocabulary))
    for layer in range(dimensions.n_layer):
        shapes |= {
            f"blk.{layer}.attn_q_norm.weight": (dimensions.head_dim,),
            f"blk.{layer}.attn_k_norm.weight": (dimensions.head_dim,),
            f"blk.{layer}.post_attention_norm.weight": (dimensions.n_embd,),
            f"blk.{layer}.post_ffw_norm.weight": (dimensions.n_embd,),
        }
    return _write(path, metadata | vocabulary, shapes, type, seed, changes)


# ---------------------------------------------------------------------------------------- vocabularies

NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6  # tokenizer.ggml.token_type
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
MERGES = (
    "h e", "Ġ t", "Ġt he", "i n", "e r", "Ġ a", "o n", "a n", "Ġ s", "r e", "Ġa n", "Ġan d", "in g", "o u",
    "Ġ w", "l l", "H e", "He ll", "Hell o", "Ċ Ċ", "Ġ Ġ",
)  # fmt: skip
WORDS = (
    "▁the",
    "▁a",
    "the",
    "▁t",
    "he",
    "in",
    "er",
    "on",
    "an",
    "▁s",
    "▁w",
    "ing",
    "ou",
    "ll",
    "▁and",
    "Hello",
    "▁▁",
)


def bpe_vocabulary() -> dict[str, Field]:
    """Byte-level BPE: three control tokens, the 256 bytes, one token a merge."""
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = control + byte_level_alphabet() + [merge.replace(" ", "") for merge in MERGES]
    types = [CONTROL] * len(control) + [NORMAL] * (len(tokens) - len(control))
    return {
        "tokenizer.ggml.model": Field("STRING", "gpt2"),
        "tokenizer.ggml.pre": Field("STRING", "smollm"),
        "tokenizer.ggml.tokens": Field("ARRAY", tokens, "STRING"),
        "tokenizer.ggml.token_type": Field("ARRAY", types, "INT32"),
        "tokenizer.ggml.merges": Field("ARRAY", MERGES, "STRING"),
        "tokenizer.ggml.bos_token_id": Field("UINT32", 1),
        "tokenizer.ggml.eos_token_id": Field("UINT32", 2),
        "tokenizer.ggml.unknown_token_id": Field("UINT32", 0),
        "tokenizer.ggml.add_bos_token": Field("BOOL", False),
        "tokenizer.ggml.add_space_prefix": Field("BOOL", False),
        "tokenizer.chat_template": Field("STRING", CHATML),
    }


def n_tokens(vocabulary: Mapping[str, Field]) -> int:
    tokens = vocabulary["tokenizer.ggml.tokens"].value
    assert isinstance(tokens, list)
    return len(tokens)


def byte_level_alphabet() -> list[str]:
    """The characters that stand for the bytes 0..255 in byte-level BPE: printable ones for themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    substitute = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(substitute)) for byte in range(256)]


def spm_vocabulary() -> dict[str, Field]:
    """SentencePiece BPE: control tokens, the 256 byte tokens, then pieces whose score is minus their rank."""
    control = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = [*WORDS, "▁", "\n", *(chr(code) for code in range(0x21, 0x7F)), "é", "ß", "日", "本"]
    types = [CONTROL] * len(control) + [BYTE] * 256 + [NORMAL] * len(pieces)
    types[control.index("<unk>")] = UNKNOWN
    scores = [0.0] * (len(control) + 256) + [-float(rank) for rank in range(len(pieces))]
    return {
        "tokenizer.ggml.model": Field("STRING", "llama"),
        "tokenizer.ggml.pre": Field("STRING", "default"),
        "tokenizer.ggml.tokens": Field("ARRAY", control + byte_tokens + pieces, "STRING"),
        "tokenizer.ggml.scores": Field("ARRAY", scores, "FLOAT32"),
        "tokenizer.ggml.token_type": Field("ARRAY", types, "INT32"),
        "tokenizer.ggml.bos_token_id": Field("UINT32", 2),
        "tokenizer.ggml.eos_token_id": Field("UINT32", 1),
        "tokenizer.ggml.unknown_token_id": Field("UINT32", 3),
        "tokenizer.ggml.padding_token_id": Field("UINT32", 0),
        "tokenizer.ggml.add_bos_token": Field("BOOL", True),
        "tokenizer.ggml.add_eos_token": Field("BOOL", False),
        "tokenizer.ggml.add_space_prefix": Field("BOOL", False),
    }


# --------------------------------------------------------------------------------- metadata and shapes


class Changes(NamedTuple):
    """The overrides of a test, split into metadata and tensors."""

    metadata: dict[str, Metadatum]
    tensors: dict[str, Weights]


def _split(dimensions: Dimensions, overrides: dict[str, Any]) -> tuple[Dimensions, Changes]:
    """Apply overrides of dimensions, and split the others into metadata keys and tensors."""
    sizes = {name: value for name, value in overrides.items() if hasattr(dimensions, name)}
    tensors = {name: value for name, value in overrides.items() if name.endswith((".weight", ".bias"))}
    metadata = {name: overrides[name] for name in overrides if name not in sizes and name not in tensors}
    return replace(dimensions, **sizes), Changes(metadata, tensors)


def common_metadata(architecture: str, d: Dimensions) -> dict[str, Metadatum]:
    """Return the metadata keys that all architectures have."""
    return {
        "general.architecture": architecture,
        "general.name": f"tiny {architecture}",
        f"{architecture}.block_count": d.n_layer,
        f"{architecture}.context_length": d.n_ctx,
        f"{architecture}.embedding_length": d.n_embd,
        f"{architecture}.feed_forward_length": d.n_ff,
        f"{architecture}.attention.head_count": d.n_head,
        f"{architecture}.attention.head_count_kv": d.n_head_kv,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
    }


def common_shapes(d: Dimensions, n_vocab: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes, by name, of the tensors that all architectures have."""
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (n_vocab, d.n_embd),
        "output_norm.weight": (d.n_embd,),
    }
    if not d.tied:
        shapes["output.weight"] = (n_vocab, d.n_embd)
    for layer in range(d.n_layer):
        shapes |= {
            f"blk.{layer}.attn_norm.weight": (d.n_embd,),
            f"blk.{layer}.attn_q.weight": (d.n_head * d.head_dim, d.n_embd),
            f"blk.{layer}.attn_k.weight": (d.n_head_kv * d.head_dim, d.n_embd),
            f"blk.{layer}.attn_v.weight": (d.n_head_kv * d.head_dim, d.n_embd),
            f"blk.{layer}.attn_output.weight": (d.n_embd, d.n_head * d.head_dim),
            f"blk.{layer}.ffn_norm.weight": (d.n_embd,),
            f"blk.{layer}.ffn_gate.weight": (d.n_ff, d.n_embd),
            f"blk.{layer}.ffn_up.weight": (d.n_ff, d.n_embd),
            f"blk.{layer}.ffn_down.weight": (d.n_embd, d.n_ff),
        }
    return shapes


# --------------------------------------------------------------------------------------------- weights


def random_tensor(rng: np.random.Generator, name: str, shape: tuple[int, ...], format_name: str) -> Stored:
    """Return random values that preserve the magnitude of activations: norms close to 1, biases not negligible."""
    if name.endswith(".bias"):
        return stored(0.5 * rng.standard_normal(shape, np.float32), "F32")
    if len(shape) == 1:
        return stored(1 + 0.1 * rng.standard_normal(shape, np.float32), "F32")
    scale = 0.1 if name == "token_embd.weight" else shape[-1] ** -0.5
    try:
        return stored(scale * rng.standard_normal(shape, np.float32), format_name)
    except NotImplementedError:  # the gguf package only decodes this format
        rows = random_rows(rng, format_name, math.prod(shape[:-1]), shape[-1], scale)
        return Stored(format_name, rows.reshape(*shape[:-1], -1))


def stored(values: Floats, format_name: str) -> Stored:
    """Encode values in a format that the `gguf` package supports."""
    encoded = gguf.quantize(np.ascontiguousarray(values, np.float32), GGMLQuantizationType[format_name])
    return Stored(format_name, encoded.view(np.uint8).reshape(*values.shape[:-1], -1))


# ------------------------------------------------------------------------------------------------ file


def _write(
    path: Path,
    metadata: Mapping[str, Metadatum],
    shapes: Mapping[str, tuple[int, ...]],
    format_name: str,
    seed: int,
    changes: Changes,
) -> Path:
    rng = np.random.default_rng(seed)
    tensors: dict[str, Stored | None] = {
        name: random_tensor(rng, name, shape, format_name) for name, shape in shapes.items()
    }
    for name, weights in changes.tensors.items():
        tensors[name] = _changed_tensor(rng, name, shapes, weights)
    writer = gguf.GGUFWriter(path, "")
    writer.kv_data[0].clear()  # the writer's own general.architecture: ours may be missing or of another type
    for key, value in (dict(metadata) | changes.metadata).items():
        if value is not None:
            add_key(writer, key, as_field(value))
        if key == "general.alignment" and isinstance(value, int):
            writer.data_alignment = value
    for name, tensor in tensors.items():
        if tensor is not None:
            *rows, row_bytes = tensor.data.shape  # from which the writer computes the columns; it knows no headers
            header = TYPES[TYPE_NUMBERS[tensor.type]].header if tensor.type in TYPE_NUMBERS else 0
            kind = GGMLQuantizationType[tensor.type]
            writer.add_tensor(name, tensor.data, raw_shape=(*rows, row_bytes - header), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _changed_tensor(
    rng: np.random.Generator, name: str, shapes: Mapping[str, tuple[int, ...]], weights: Weights
) -> Stored | None:
    if weights is None or isinstance(weights, Stored):
        return weights
    if isinstance(weights, str):
        return random_tensor(rng, name, shapes[name], weights)
    return stored(weights, "F32")


def as_field(value: Field | Scalar | Sequence[Scalar]) -> Field:
    """Return a Python value with its usual GGUF type."""
    if isinstance(value, Field):
        return value
    if isinstance(value, bool):
        return Field("BOOL", value)
    if isinstance(value, int):
        return Field("UINT32", value)
    if isinstance(value, float):
        return Field("FLOAT32", value)
    if isinstance(value, str | bytes):
        return Field("STRING", value)
    return Field("ARRAY", value, as_field(value[0]).type)


def add_key(writer: gguf.GGUFWriter, key: str, field: Field) -> None:
    """Write a metadata value with exactly its type."""
    element = GGUFValueType[field.element] if field.element else None
    writer.add_key_value(key, field.value, GGUFValueType[field.type], element)

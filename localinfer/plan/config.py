"""The numbers of a model, read from the file's metadata and proven to make sense before anything is computed."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import LocalInferError, Unsupported
from localinfer.files.gguf import GGUF

SIXTEEN_BIT = 1 << 16
LARGEST = {
    "block_count": 1024,
    "embedding_length": 1 << 17,
    "feed_forward_length": 1 << 20,
    "head_count": 1 << 12,
}
CONTEXT_LARGEST = 1 << 30
ROPE_FACTORS = "rope_freqs.weight"  # of the layers that see everything
LARGEST_GROUP = 64  # query heads a key head: attention's kernels are compiled for all of them at once


@dataclass(frozen=True)
class Rope:
    """Rotary embedding of one kind of layer: the first n_rot values of a head turn, a frequency for each pair."""

    n_rot: int
    freq_base: float
    scale: float = 1.0  # positions are divided by this
    has_factors: bool = False  # and each pair's frequency by its own, which the file keeps as a tensor


@dataclass(frozen=True)
class Config:
    """Names are those of the GGUF keys; head_dim is attention.key_length."""

    architecture: str
    block_count: int
    context_length: int
    embedding_length: int
    feed_forward_length: int
    head_count: int
    head_count_kv: int
    head_dim: int
    eps: float
    rope: Rope
    sliding_window: int  # 0: none
    rope_swa: Rope

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.head_count // self.head_count_kv


class Reader:
    """Reads `<architecture>.<key>` and says in one line what is wrong with it."""

    def __init__(self, f: GGUF) -> None:
        self.f = f
        self.architecture = f.get("general.architecture", str)

    def count(self, key: str, default: int | None = None, *, least: int = 1, most: int = CONTEXT_LARGEST) -> int:
        """An integer within bounds."""
        name = f"{self.architecture}.{key}"
        value = self.f.get(name, int) if default is None else self.f.get(name, int, default)
        if not least <= value <= most:
            raise self.f.error(name, f"is {value}; it must be {least} to {most}")
        return value

    def positive(self, key: str, default: float | None = None, *, most: float = 1e30) -> float:
        """A number above zero."""
        name = f"{self.architecture}.{key}"
        value = float(self.f.get(name, float) if default is None else self.f.get(name, float, default))
        if not 0 < value < most:
            raise self.f.error(name, f"is {value}; it must be above 0 and below {most:g}")
        return value

    def refuse(self, key: str, value: object) -> LocalInferError:
        """The error for something well formed that cannot be run."""
        return self.f.error(f"{self.architecture}.{key}", f"{value} is not supported", Unsupported)


# What changes the computation of models of other families, and is not there in those that are supported.
FOREIGN: Mapping[str, type[int] | type[float]] = {
    "expert_count": int,
    "attention.scale": float,
    "attn_logit_softcapping": float,
    "final_logit_softcapping": float,
    "logit_scale": float,
}


def read_config(f: GGUF) -> Config:
    """The model's numbers.

    Raises LocalInferError naming the key that is missing, of the wrong type or without sense.
    """
    r = Reader(f)
    for key, kind in FOREIGN.items():
        if value := f.get(f"{r.architecture}.{key}", kind, 0, signed=True):
            raise r.refuse(key, value)
    embedding_length = r.count("embedding_length", most=LARGEST["embedding_length"])
    head_count = r.count("attention.head_count", most=LARGEST["head_count"])
    head_count_kv = r.count("attention.head_count_kv", head_count, most=LARGEST["head_count"])
    feed_forward_length = r.count("feed_forward_length", most=LARGEST["feed_forward_length"])
    if head_count % head_count_kv:
        raise f.error(f"{r.architecture}.attention.head_count_kv", f"is {head_count_kv}; it must divide {head_count}")
    if head_count // head_count_kv > LARGEST_GROUP:
        raise r.refuse("attention.head_count_kv", f"more than {LARGEST_GROUP} heads for each of {head_count_kv}")
    for key, n in {"embedding_length": embedding_length, "feed_forward_length": feed_forward_length}.items():
        if n % 32:
            raise f.error(f"{r.architecture}.{key}", f"is {n}; it must be a multiple of 32")
    head_dim = read_head_dim(r, embedding_length, head_count)
    return Config(
        architecture=r.architecture,
        block_count=r.count("block_count", most=LARGEST["block_count"]),
        context_length=r.count("context_length"),
        embedding_length=embedding_length,
        feed_forward_length=feed_forward_length,
        head_count=head_count,
        head_count_kv=head_count_kv,
        head_dim=head_dim,
        eps=r.positive("attention.layer_norm_rms_epsilon", most=1.0),
        rope=read_rope(r, head_dim),
        sliding_window=r.count("attention.sliding_window", 0, least=0),
        rope_swa=Rope(read_n_rot(r, head_dim), r.positive("rope.freq_base_swa", 10_000.0)),
    )


def read_head_dim(r: Reader, embedding_length: int, head_count: int) -> int:
    """The length of a head: given, or an even share of the embedding."""
    if f"{r.architecture}.attention.key_length" not in r.f.metadata and embedding_length % head_count:
        what = f"is {head_count}; it must divide the embedding length {embedding_length}"
        raise r.f.error(f"{r.architecture}.attention.head_count", what)
    head_dim = r.count("attention.key_length", embedding_length // head_count, most=SIXTEEN_BIT)
    if r.count("attention.value_length", head_dim) != head_dim:
        raise r.refuse("attention.value_length", "another length than that of keys")
    if head_dim % 32:
        raise r.refuse("attention.key_length", f"a head of {head_dim} values (not a multiple of 32)")
    return head_dim


def read_n_rot(r: Reader, head_dim: int) -> int:
    """How many values of a head turn."""
    n_rot = r.count("rope.dimension_count", head_dim)
    if n_rot % 2 or n_rot > head_dim:
        what = f"is {n_rot}; it must be even and at most {head_dim}, the length of a head"
        raise r.f.error(f"{r.architecture}.rope.dimension_count", what)
    return n_rot


def read_rope(r: Reader, head_dim: int) -> Rope:
    """The rotary embedding of the layers that see everything."""
    kind = r.f.get(f"{r.architecture}.rope.scaling.type", str, "none")
    if kind not in ("none", "linear"):
        raise r.refuse("rope.scaling.type", repr(kind))
    scale = r.positive("rope.scaling.factor", 1.0) if kind == "linear" else 1.0
    base = r.positive("rope.freq_base", 10_000.0)
    return Rope(read_n_rot(r, head_dim), base, scale, has_factors=ROPE_FACTORS in r.f.tensors)


def frequencies(rope: Rope, factors: NDArray[np.float32] | None = None) -> NDArray[np.float64]:
    """Radians a position for each pair: base^(-2i/n_rot), slowed by the scale and by a factor for each pair."""
    pairs = np.arange(rope.n_rot // 2, dtype=np.float64)
    plain = rope.freq_base ** (-2.0 * pairs / rope.n_rot) / rope.scale
    return plain if factors is None else plain / factors.astype(np.float64)


def read_sliding(f: GGUF, config: Config, pattern: int) -> list[bool]:
    """Whether each block sees a sliding window only: by the file's array, or all but the last of every `pattern`."""
    key = f"{config.architecture}.attention.sliding_window_pattern"
    given = f.metadata.get(key, pattern)
    if isinstance(given, np.ndarray):
        if len(given) != config.block_count:
            raise f.error(key, f"has {len(given)} entries for {config.block_count} blocks")
        sliding = [bool(flag) for flag in given]
    else:
        every = f.get(key, int, pattern)
        sliding = [every > 0 and (block + 1) % every != 0 for block in range(config.block_count)]
    return sliding if config.sliding_window else [False] * config.block_count

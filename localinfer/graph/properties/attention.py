"""The attention of a layer: its heads, with the sizes of their keys and values, and what it computes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from localinfer.graph.properties.hyperparameters import MAXIMA, Hyperparameters
from localinfer.graph.properties.rope import Rope
from localinfer.graph.properties.sliding_window import sliding_window_layers
from localinfer.kernels.layout import FIRST_BIAS, MAX_BIAS_DISTANCE

# Cache entries are quantized in groups of this many values: see `localinfer.kernels.attention.cache_types`.
VALUE_GROUP = 32


@dataclass(frozen=True)
class AttentionHeads:
    """`count` query heads share `count_kv` key and value heads; `key` and `value` are head sizes. Layers without
    attention have count_kv = 0.

    Cache entries, and queries compared with them, are padded with zeros to a multiple of 32 values.
    """

    count: int
    count_kv: int
    key: int
    value: int

    @property
    def group(self) -> int:
        """Query heads per key head."""
        return self.count // self.count_kv

    @property
    def key_dim(self) -> int:
        """The padded size of a key in the cache."""
        return -(-self.key // VALUE_GROUP) * VALUE_GROUP

    @property
    def value_dim(self) -> int:
        """The padded size of a value in the cache."""
        return -(-self.value // VALUE_GROUP) * VALUE_GROUP


@dataclass(frozen=True)
class AttentionSpec:
    """The attention of a layer.

    Queries and keys are rotated by `rope` (None: no positions). Tokens attend to the last `window` positions (0: all),
    or, if `chunked`, to those of their own chunk of `window` positions.

    `head_norm` is the norm of the heads of queries and keys: RMSNorm "before_rope" or "after_rope", "unweighted"
    RMSNorm after RoPE, LayerNorm with weights "per_head", or "none". Scores are multiplied by `scale` (None: key
    size^-1/2) and soft-capped at `cap` unless that is 0. With `sinks`, each head has a learned score, which the softmax
    includes and which has no value. Unless `max_alibi_bias` is 0, scores decrease with the distance of the key
    (`alibi_slopes`). `bias` names a tensor, (buckets, heads), with what is added to the score of a key at each distance
    (`relative_buckets`).

    If `selected`, tokens only attend to the positions that a builder's `select_positions`, `select_runs` or
    `select_blocks` chose last.

    With `compression`, each run of so many positions also has one compressed key, which is its value, too, and to which
    tokens attend from the last position of the run on, whatever the window; if `selected`, only to those chosen. If
    there are `only_runs`, positions themselves have no keys.

    The rows of a bidirectional media span also attend to the later ones of the span, unless `causal_media`.
    """

    rope: Rope | None = None
    window: int = 0
    chunked: bool = False
    head_norm: str = "none"
    scale: float | None = None
    cap: float = 0.0
    sinks: bool = False
    max_alibi_bias: float = 0.0
    causal_media: bool = False
    selected: bool = False
    compression: int = 0
    only_runs: bool = False
    bias: str = ""


@dataclass(frozen=True)
class BlockChoice:
    """The blocks of adjacent positions that a token attends to: `top_k` blocks of `size` positions each, the last
    `local` ones up to its own, and those with the largest scores."""

    size: int
    top_k: int
    local: int


@dataclass(frozen=True)
class RunChoice:
    """The positions that a token attends to: the `top_k` complete runs of `size` adjacent positions with the largest
    scores, and those after the last complete run."""

    size: int
    top_k: int


def alibi_slopes(heads: int, max_bias: float) -> NDArray[np.float64]:
    """Return how much the scores of each head decrease for each position between query and key (ALiBi; Press et al.,
    2021): powers of 2, from 2^(-max_bias / heads) to 2^-max_bias if the number of heads is a power of two. Further
    heads have the slopes between these.
    """
    n = 1 << (heads.bit_length() - 1)
    number = np.arange(heads)
    steps = np.where(number < n, number + 1.0, number - n + 0.5)
    return np.exp2(-max_bias * steps / n)


def relative_buckets(ahead: NDArray[np.int64], count: int, *, causal: bool) -> NDArray[np.int64]:
    """Return the bucket, of `count`, of keys that many positions ahead of the query (T5; Raffel et al., 2020).

    Each of the nearest distances has a bucket of its own; the others share buckets whose widths grow exponentially up
    to `MAX_BIAS_DISTANCE`. If attention is not `causal`, the second half of the buckets is that of later keys. As in
    transformers, the logarithm is computed in float32.
    """
    size = count if causal else count // 2
    distance, own = (np.maximum(-ahead, 0) if causal else np.abs(ahead)), size // 2
    ratio = np.log(np.maximum(distance, own).astype(np.float32) / np.float32(own))
    ratio /= np.float32(np.log(MAX_BIAS_DISTANCE / own))
    far = np.minimum(own + (ratio * np.float32(size - own)).astype(np.int64), size - 1)
    return np.where(distance < own, distance, far) + np.where(~np.bool_(causal) & (ahead > 0), size, 0)


def bias_rows(weights: NDArray[np.float32], *, causal: bool) -> NDArray[np.float32]:
    """Return the biases of the base-2 scores of each head as attention kernels read them, (heads, BIAS_ROW), from those
    of each bucket, (buckets, heads)."""
    buckets = relative_buckets(np.arange(-FIRST_BIAS, FIRST_BIAS), len(weights), causal=causal)
    return np.ascontiguousarray((weights[buckets] / np.log(2)).T.astype(np.float32))


def read_attention_heads(hparams: Hyperparameters, embedding_length: int, blocks: int) -> Sequence[AttentionHeads]:
    """Return the heads of each layer.

    Keys and values have n_embd / n_head values unless the file gives their lengths, for all layers or separately for
    sliding-window layers. Purely recurrent models have no heads, and some layers of others may have none.
    """
    is_recurrent = hparams.has("ssm.state_size") or hparams.has("wkv.head_size")
    if is_recurrent and not any(hparams.counts("attention.head_count", blocks, 0, minimum=0)):
        return [AttentionHeads(0, 0, 0, 0)] * blocks
    counts = hparams.counts("attention.head_count", blocks, minimum=0)
    most = max(counts)
    if not most:
        raise hparams.error("attention.head_count", "is 0; there must be at least one")
    counts_kv = hparams.counts("attention.head_count_kv", blocks, most, minimum=0)
    if not hparams.has("attention.key_length") and embedding_length % most:
        what = f"is {most}; it must divide the embedding length {embedding_length}"
        raise hparams.error("attention.head_count", what)
    usual = max(1, embedding_length // most)
    full = read_head_lengths(hparams, (usual, usual))
    lengths = [full] * blocks
    if hparams.has("attention.key_length_swa") or hparams.has("attention.value_length_swa"):
        local = read_head_lengths(hparams, full, "_swa")
        lengths = [local if sliding else full for sliding in sliding_window_layers(hparams, blocks, 0)]
    if not any(counts_kv):
        raise hparams.error("attention.head_count_kv", "is 0; there must be at least one")
    for count, count_kv in zip(counts, counts_kv, strict=True):
        if count_kv and (count % count_kv or not count):
            raise hparams.error("attention.head_count_kv", f"is {count_kv}; it must divide {count}")
    each = zip(counts, counts_kv, lengths, strict=True)
    return [AttentionHeads(count, count_kv, key, value) for count, count_kv, (key, value) in each]


def read_head_lengths(hparams: Hyperparameters, usual: tuple[int, int], kind: str = "") -> tuple[int, int]:
    """Return the lengths of keys and values; with the `kind` "_swa", those of sliding-window layers. With latent
    attention, values are latent vectors, also where files have another length."""
    key, value = (hparams.count(f"attention.{x}_length{kind}", n) for x, n in zip(("key", "value"), usual, strict=True))
    if hparams.has(f"attention.key_length_mla{kind}"):
        value = hparams.count(f"attention.kv_lora_rank{kind}", maximum=MAXIMA["attention.value_length"])
    return key, value

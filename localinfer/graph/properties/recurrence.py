"""The shape of recurrent heads: their number and the size of their state matrices; RWKV has only a head size."""

from typing import NamedTuple

from localinfer.graph.properties.hyperparameters import Hyperparameters
from localinfer.kernels.layout import state_strip

MAX_DECAY_BOUND = 80  # e^-80 is about the smallest float32
HEAD_NORM_EPS = 64e-5  # of the norm of the heads of RWKV-6 and ARWKV, whatever their size
RECURRENT_KEYS = ("ssm.conv_kernel", "ssm.group_count", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank")


class Recurrence(NamedTuple):
    """`heads` value heads use `groups` key and query heads; the state of a head is key x value numbers.

    `heads_per_key` adjacent value heads share a key head, and the next ones use the next key head, cyclically. `rule`
    is the state update, "delta", "kda" or "add": see `localinfer.kernels.recurrent.state_matrix`. `width` is the width
    of the preceding convolution in tokens. The logarithms of the decays of "kda" are at least `decay_bound` (0: they
    have no limit).
    """

    rule: str
    heads: int
    groups: int
    heads_per_key: int
    key: int
    value: int
    width: int
    decay_bound: float = 0.0

    @property
    def n_keys(self) -> int:
        """The number of key values of a token; it has as many query values."""
        return self.groups * self.key

    @property
    def n_values(self) -> int:
        return self.heads * self.value


def read_recurrence(hparams: Hyperparameters, rule: str, *, repeat_interleave: bool = False) -> Recurrence:
    """Return the shape from the metadata. Raises UnsupportedError if kernels cannot divide it into strips.

    With the rule "add", or with `repeat_interleave`, value heads that share a key head are adjacent; otherwise they are
    interleaved. All value heads share one key head if the number of groups is 0, as files of PLaMo 2 have it.
    """
    heads = hparams.count("ssm.time_step_rank", maximum=1 << 12)
    groups = max(1, hparams.count("ssm.group_count", minimum=0, maximum=1 << 12))
    key, inner = hparams.count("ssm.state_size", maximum=1 << 12), hparams.count("ssm.inner_size", maximum=1 << 20)
    if heads % groups:
        raise hparams.error("ssm.group_count", f"is {groups}; it must divide {heads}, the number of heads")
    if inner % (heads * state_strip(inner // heads)):
        raise hparams.unsupported("ssm.inner_size", f"{inner} for {heads} heads")
    if key % 16:
        raise hparams.unsupported("ssm.state_size", key)
    heads_per_key = heads // groups if repeat_interleave or rule == "add" else 1
    return Recurrence(
        rule, heads, groups, heads_per_key, key, inner // heads, hparams.count("ssm.conv_kernel", maximum=64)
    )


def read_kda(hparams: Hyperparameters, heads: int, *, bounded: bool) -> Recurrence:
    """Return the shape of Kimi Delta Attention, whose heads have keys and values of equal length. If decays are
    `bounded`, the file has the limit of their logarithms. Raises UnsupportedError as `read_recurrence`."""
    size = hparams.count("kda.head_dim", maximum=1 << 12)
    if size % state_strip(size):
        raise hparams.unsupported("kda.head_dim", size)
    bound = hparams.number("kda.gate_lower_bound", 0.0) if bounded else 0.0
    if bounded and not -MAX_DECAY_BOUND <= bound < 0:
        what = f"is {bound:g}; it must be below 0, and at least -{MAX_DECAY_BOUND}"
        raise hparams.error("kda.gate_lower_bound", what)
    width = hparams.count("ssm.conv_kernel", maximum=64)
    return Recurrence("kda", heads, heads, 1, size, size, width, bound)


def read_wkv_head_size(hparams: Hyperparameters, embedding_length: int) -> int:
    """Return the head size of RWKV, which must divide n_embd and be a multiple of the kernels' strip size."""
    size = hparams.count("wkv.head_size", maximum=1 << 12)
    if size % state_strip(size) or embedding_length % size:
        raise hparams.unsupported("wkv.head_size", size)
    return size


def read_wkv_kv_heads(hparams: Hyperparameters, heads: int) -> int:
    """Return the number of heads of keys and values that `heads` heads share: as many, unless the file has it."""
    count = hparams.count("attention.head_count_kv", 0, minimum=0) or heads
    if heads % count:
        raise hparams.error("attention.head_count_kv", f"is {count}; it must divide {heads}")
    return count


def require_token_shifts(hparams: Hyperparameters, count: int) -> None:
    """Raise UnsupportedError unless layers of RWKV have this number of token shifts. Files with 2 need not say it."""
    found = hparams.count("token_shift_count", 2)
    if found != count:
        raise hparams.unsupported("token_shift_count", found)

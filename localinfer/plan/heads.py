"""The shape of attention: how many heads there are, and how long their keys and values are."""

from collections.abc import Sequence
from dataclasses import dataclass

from localinfer.plan.keys import Keys, sliding

CELL = 32  # values that a cell holds together: see `localinfer.ops.cells`


@dataclass(frozen=True)
class Heads:
    """`count` heads of queries share `count_kv` heads of keys and values; `key` and `value` are the values of a head.
    Blocks without attention have no heads of keys.

    The cells of the cache, and queries when they meet them, are as wide as whole groups of 32 values: what is beyond a
    head's own is 0.
    """

    count: int
    count_kv: int
    key: int
    value: int

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.count // self.count_kv

    @property
    def key_dim(self) -> int:
        """The values of a key's cell."""
        return -(-self.key // CELL) * CELL

    @property
    def value_dim(self) -> int:
        """The values of a value's cell."""
        return -(-self.value // CELL) * CELL


def read_heads(keys: Keys, embedding_length: int, blocks: int) -> Sequence[Heads]:
    """Of each block; a head is an even share of the embedding, unless the file says how long it is, for all blocks or
    for those with a sliding window apart. A model that has states alone has no heads."""
    if (keys.has("ssm.state_size") or keys.has("wkv.head_size")) and not keys.count("attention.head_count", 0, least=0):
        return [Heads(0, 0, 0, 0)] * blocks
    counts = keys.counts("attention.head_count", blocks)
    counts_kv = keys.counts("attention.head_count_kv", blocks, counts[0], least=0)
    if not keys.has("attention.key_length") and embedding_length % counts[0]:
        what = f"is {counts[0]}; it must divide the embedding length {embedding_length}"
        raise keys.error("attention.head_count", what)
    key = keys.count("attention.key_length", max(1, embedding_length // counts[0]))
    value = keys.count("attention.value_length", key)
    lengths = [(key, value)] * blocks
    if keys.has("attention.key_length_swa") or keys.has("attention.value_length_swa"):
        nearby = keys.count("attention.key_length_swa", key), keys.count("attention.value_length_swa", value)
        lengths = [nearby if slides else (key, value) for slides in sliding(keys, blocks, 0)]
    if not any(counts_kv):
        raise keys.error("attention.head_count_kv", "is 0; there must be one at least")
    for count, count_kv in zip(counts, counts_kv, strict=True):
        if count_kv and count % count_kv:
            raise keys.error("attention.head_count_kv", f"is {count_kv}; it must divide {count}")
    each = zip(counts, counts_kv, lengths, strict=True)
    return [Heads(count, count_kv, key, value) for count, count_kv, (key, value) in each]

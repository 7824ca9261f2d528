"""The sizes and types that attention kernels are compiled for."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class OutputShape:
    """The heads of the output, and the tiles that compute them.

    `group` query heads share a key head. The cache has value_dim values per entry and head, of which the first
    value_size are returned; if value_entry_dim > value_dim, values are the last value_dim dimensions of keys of
    value_entry_dim dimensions. Tiles have `rows` rows, or `single` rows in segments of one token. The output is
    quantized for tiles of `tile` tokens in `passes` passes (`quant.matmul.activations`).
    """

    group: int
    value_dim: int
    value_size: int
    value_entry_dim: int
    v_type: str
    tile: int
    passes: int
    rows: int
    single: int


@dataclass(frozen=True, kw_only=True)
class AttentionShape(OutputShape):
    """The same with the keys: key_dim values per entry in the cache, key_size before padding. Scores are soft-capped if
    `capped`."""

    key_dim: int
    key_size: int
    k_type: str
    capped: int

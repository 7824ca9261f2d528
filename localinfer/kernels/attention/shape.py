"""The sizes and types that attention kernels are compiled for."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class AttentionShape:
    """The cache, and the tiles that process it.

    The cache has key_dim values per entry and head for keys of key_size values before padding, and value_dim values. If
    value_entry_dim > value_dim, values are the last value_dim dimensions of keys of value_entry_dim dimensions. Scores
    are soft-capped if `capped`. Tiles have `rows` rows, or `single` rows in segments of one token. The output is
    quantized for tiles of `tile` tokens in `passes` passes (`quant.matmul.activations`).
    """

    key_dim: int
    key_size: int
    k_type: str
    value_dim: int
    value_entry_dim: int
    v_type: str
    capped: int
    rows: int
    single: int
    tile: int
    passes: int

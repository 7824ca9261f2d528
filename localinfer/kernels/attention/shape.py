"""What attention kernels are compiled for, and the sizes of heads, which are arguments."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from localinfer.kernels.attention.cache_types import CACHE_TYPES, CacheType, make_page_bytes
from localinfer.kernels.layout import PAGE_SIZE, PANEL_KEYS, row_state_bytes
from quant.jit.vectors import inline


@dataclass(frozen=True, kw_only=True)
class AttentionVariant:
    """The types and the tiles that attention kernels are compiled for.

    If `values_in_keys`, values are dimensions of the keys. Scores are soft-capped if `capped`, decrease with the
    distance of the key if `sloped`, and have a bias for each distance if `biased`. If `selected`, only the entries that
    `localinfer.kernels.attention.indexer` or `block_indexer` has chosen for a token count. Tiles have `rows` rows, or
    `single` rows in segments of one token. The output is quantized for tiles of `tile` tokens in `passes` passes
    (`quant.matmul.activations`).
    """

    k_type: str
    v_type: str
    values_in_keys: int
    capped: int
    sloped: int
    biased: int
    selected: int
    rows: int
    single: int
    tile: int
    passes: int

    @property
    def keys(self) -> CacheType:
        """The type of the keys."""
        return CACHE_TYPES[self.k_type]

    @property
    def values(self) -> CacheType:
        """The type of the values."""
        return CACHE_TYPES[self.v_type]


class HeadSizes(NamedTuple):
    """The sizes of a layer's heads, and what follows from them."""

    key_dim: int  # values of a key in the cache
    scored_dim: int  # dimensions that are multiplied: without the padding of floats, and an even number
    value_dim: int  # values in the cache; if they are dimensions of the keys, the last ones
    k_page_bytes: int  # a page of keys
    v_page_bytes: int  # a page of values
    state_bytes: int  # a row's softmax state
    k_step: int  # keys to prefetch while 16 values of an entry are added
    v_step: int  # values to prefetch while two dimensions of a panel of keys are multiplied


def make_head_sizes(variant: AttentionVariant) -> Any:
    """Make head_sizes(args): return the sizes of the heads that a kernel's arguments describe."""
    k_bytes, v_bytes = make_page_bytes(variant.keys), make_page_bytes(variant.values)
    header_bytes, values_in_keys, skips_padding = row_state_bytes(0), variant.values_in_keys, not variant.keys.scaled
    panels = PAGE_SIZE // PANEL_KEYS

    @inline
    def head_sizes(args: Any) -> HeadSizes:
        key_dim, value_dim = args.key_dim, args.value_dim
        k_page_bytes, v_page_bytes = k_bytes(key_dim), v_bytes(key_dim if values_in_keys else value_dim)
        scored_dim = args.key_size + args.key_size % 2 if skips_padding else key_dim
        return HeadSizes(
            key_dim,
            scored_dim,
            value_dim,
            k_page_bytes,
            v_page_bytes,
            header_bytes + 4 * value_dim,
            k_page_bytes // PAGE_SIZE // (value_dim // 16),
            v_page_bytes // panels // (scored_dim // 2),
        )

    return head_sizes

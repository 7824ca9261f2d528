"""Which layers have a sliding window, and which layers use the keys and values of others."""

from collections.abc import Sequence

import numpy as np

from localinfer.graph.properties.hyperparameters import Hyperparameters


def read_sliding_window(hparams: Hyperparameters, default: int = 0) -> int:
    """Return the sliding window in tokens, 0 if there is none."""
    return hparams.count("attention.sliding_window", default, minimum=0)


def read_sliding_layers(
    hparams: Hyperparameters, blocks: int, pattern: int, *, default_window: int = 0, first: bool = False
) -> Sequence[bool]:
    """Return for each layer whether it has a sliding window: as `sliding_window_layers`, but without a window no layer
    has one."""
    sliding = sliding_window_layers(hparams, blocks, pattern, first=first)
    return sliding if read_sliding_window(hparams, default_window) else [False] * blocks


def sliding_window_layers(
    hparams: Hyperparameters, blocks: int, pattern: int, *, first: bool = False
) -> Sequence[bool]:
    """Return for each layer whether it has a sliding window: the file's array, or all but the last of every `pattern`
    layers (with `first`, all but the first of them)."""
    key = "attention.sliding_window_pattern"
    given = isinstance(hparams.f.metadata.get(hparams.full_name(key)), np.ndarray)
    every = 0 if given else hparams.count(key, pattern, minimum=0)
    return hparams.flags(key, blocks, lambda block: every > 0 and (block + (not first)) % every != 0)


def read_kv_source_layers(hparams: Hyperparameters, blocks: int, sliding: Sequence[bool]) -> Sequence[int]:
    """Return the layer whose keys and values each layer uses: its own, or for the last `shared_kv_layers` layers, those
    of the last unshared layer of the same kind (sliding window or not)."""
    key = "attention.shared_kv_layers"
    first = blocks - hparams.count(key, 0, minimum=0)
    sources = {sliding[block]: block for block in range(first)}
    for block in range(max(0, first), blocks):
        if sliding[block] not in sources:
            raise hparams.error(
                key, f"is {blocks - first}; no earlier layer has the same attention span as layer {block}"
            )
    return [block if block < first else sources[sliding[block]] for block in range(blocks)]

"""Tiny valid models to make mutants of: every architecture that `tiny` can write, in every tensor type, in many shapes.

Kernels are compiled for the shape of heads, the types of the cache and the precision, so that these come in some
combinations only. All else that shapes a model or a run is free.
"""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import tiny
from random_blocks import NAMES

from localinfer.options import Layer
from quant.ggml import TYPES

BLOCK = {kind.name: kind.elements for kind in TYPES.values()}
HEADS = (  # heads, key heads, their length
    (4, 2, 64), (1, 1, 32), (8, 8, 32), (2, 1, 128), (3, 1, 96), (8, 1, 64), (5, 1, 32), (2, 2, 160), (6, 2, 128),
    (12, 4, 64), (1, 1, 256), (16, 1, 32),
)  # fmt: skip
CACHES = tuple(itertools.product(("f16", "q8_0", "q4_0", "f32"), repeat=2))
PRECISIONS = ("fast", "high")
Source = tuple[Path, Layer]  # a model, and those options of a run that its kernels are compiled for


def sources_in(folder: Path, like: str = "") -> Iterator[Source]:
    """One for each tensor type and architecture, written into the folder: those with `like` in their names."""
    choose = Random(0)
    for number, (name, (architecture, write)) in enumerate(itertools.product(NAMES, writers().items())):
        heads = [each for each in HEADS if each[0] * each[2] % BLOCK[name] == 0]
        shape = shape_of(max(BLOCK[name], 32), *heads[number % len(heads)], choose)
        keys = {f"{architecture}.attention.{which}_length": shape["head_dim"] for which in ("key", "value")}
        k, v = CACHES[number % len(CACHES)]
        own: Layer = {"cache_type_k": k, "cache_type_v": v, "precision": PRECISIONS[number % len(PRECISIONS)]}
        if like in f"{architecture}-{name}":
            yield write(folder / f"{architecture}-{name}.gguf", type=name, **shape, **keys), own


def shape_of(unit: int, n_head: int, n_head_kv: int, head_dim: int, choose: Random) -> dict[str, int]:
    """Fields of `tiny.Dimensions`, with rows in multiples of `unit`."""
    return {
        "n_layer": choose.choice((1, 1, 2, 3)), "n_embd": unit * choose.choice((1, 1, 2, 3)),
        "n_ff": unit * choose.choice((1, 2, 3, 5)), "n_head": n_head, "n_head_kv": n_head_kv, "head_dim": head_dim,
        "n_ctx": choose.choice((1, 40, 512)), "sliding_window": choose.choice((1, 5, 33)),
        "tied": choose.random() < 0.5,
    }  # fmt: skip


def writers() -> dict[str, Callable[..., Path]]:
    """By architecture."""
    prefix = "tiny_"
    return {name.removeprefix(prefix): write for name, write in vars(tiny).items() if name.startswith(prefix)}

"""Tiny valid models to make mutants of: every architecture that has a proof, and every tensor type in many shapes.

Kernels are compiled for the shape of heads, the types of the cache and the precision, so that these come in some
combinations only. All else that shapes a model or a run is free.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NamedTuple

import checkpoints
import proofs
import tiny
from fuzz.draft import BLOCK, Draft, Weights, in_type
from random_blocks import NAMES

from localinfer.options import Layer

HEADS = (  # heads, key heads, their length
    (4, 2, 64), (1, 1, 32), (8, 8, 32), (2, 1, 128), (3, 1, 96), (8, 1, 64), (5, 1, 32), (2, 2, 160), (6, 2, 128),
    (12, 4, 64), (1, 1, 256), (16, 1, 32),
)  # fmt: skip
CACHES = tuple(itertools.product(("f16", "q8_0", "q4_0", "f32"), repeat=2))
PRECISIONS = ("fast", "high")
NO_MATRICES = (  # of heads, of experts, of channels; routers; of residual streams
    b"norm", b".bias", b"ssm_conv1d", b"ffn_gate_inp", b"_coef",
)  # fmt: skip
SMALL = [name for name in NAMES if BLOCK[name] <= 32]  # what divides the rows of proofs


class Source(NamedTuple):
    """A model, and those options of a run that its kernels are compiled for."""

    path: Path
    options: Layer


def sources_in(folder: Path, like: str = "") -> Iterator[Source]:
    """Models written into the folder; only those whose names, ARCHITECTURE-TYPE, have `like` in them."""
    yield from of_all_types(folder, like)
    yield from of_all_architectures(folder, like)


def of_all_types(folder: Path, like: str) -> Iterator[Source]:
    """One for each type and each architecture that `tiny` can write."""
    choose = Random(0)
    for number, (name, (architecture, write)) in enumerate(itertools.product(NAMES, writers().items())):
        heads = [each for each in HEADS if each[0] * each[2] % BLOCK[name] == 0]
        shape = shape_of(max(BLOCK[name], 32), *heads[number % len(heads)], choose)
        keys = {f"{architecture}.attention.{which}_length": shape["head_dim"] for which in ("key", "value")}
        if like in f"{architecture}-{name}":
            path = write(folder / f"{architecture}-{name}.gguf", type=name, **shape, **keys)
            yield Source(path, options_of(number))


def of_all_architectures(folder: Path, like: str) -> Iterator[Source]:
    """Each proof in F32, and in one of the types that divide its rows."""
    for number, name in enumerate(proofs.NAMES):
        types = "F32", SMALL[1 + number % (len(SMALL) - 1)]
        if any(like in f"{proofs.architecture(name)}-{type}" for type in types):
            draft = Draft.of(checkpoints.as_f32(proofs.checkpoint(name, folder), folder / f"{name}.gguf"))
            for type in types:
                path = folder / f"{name}-{type}.gguf"
                path.write_bytes(replace(draft, tensors=list(matrices_in(type, draft.tensors))).to_bytes())
                yield Source(path, options_of(number) if number % 2 else {})


def matrices_in(type: str, tensors: Sequence[Weights]) -> Iterator[Weights]:
    """The tensors, of which matrices are in that type; some have two dimensions, and are none."""
    for each in tensors:
        yield each if any(word in each.name for word in NO_MATRICES) else in_type(each, type, Random(0))


def options_of(number: int) -> Layer:
    """Types of the cache and a precision."""
    k, v = CACHES[number % len(CACHES)]
    return {"cache_type_k": k, "cache_type_v": v, "precision": PRECISIONS[number % len(PRECISIONS)]}


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

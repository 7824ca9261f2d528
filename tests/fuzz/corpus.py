"""The seed corpus: tiny valid models of every architecture with a reference model, and of every tensor type.

Kernels are specialized for the shape of attention heads, the types of the KV cache and the precision, so that these
occur in few combinations only. All other dimensions and options vary freely.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NamedTuple

import checkpoints
import reference_models
import tiny
from fuzz.mutable_gguf import BLOCK_SIZES, MutableGGUF, TensorEntry, randomize_as_type
from random_blocks import NAMES

from localinfer.options import Layer

HEADS = (  # (n_head, n_head_kv, head_dim)
    (4, 2, 64), (1, 1, 32), (8, 8, 32), (2, 1, 128), (3, 1, 96), (8, 1, 64), (5, 1, 32), (2, 2, 160), (6, 2, 128),
    (12, 4, 64), (1, 1, 256), (16, 1, 32),
)  # fmt: skip
CACHES = tuple(itertools.product(("f16", "q8_0", "q4_0", "f32"), repeat=2))
PRECISIONS = ("fast", "high")
VECTOR_NAMES = (  # tensors with two dimensions that are not weight matrices
    b"norm", b".bias", b"ssm_conv1d", b"ffn_gate_inp", b"_coef",
)  # fmt: skip
# Types whose block size divides the rows of the reference models.
SMALL_BLOCK_TYPES = [name for name in NAMES if BLOCK_SIZES[name] <= 32]


class SeedModel(NamedTuple):
    """A model, and the options that its kernels are compiled for."""

    path: Path
    options: Layer


def write_corpus(folder: Path, like: str = "") -> Iterator[SeedModel]:
    """Write the models to the folder. Only those whose name, ARCHITECTURE-TYPE, contains `like`."""
    yield from models_of_all_types(folder, like)
    yield from models_of_all_architectures(folder, like)


def models_of_all_types(folder: Path, like: str) -> Iterator[SeedModel]:
    """Write a model for each tensor type and each architecture that `tiny` supports."""
    choose = Random(0)
    for number, (name, (architecture, write)) in enumerate(itertools.product(NAMES, model_writers().items())):
        heads = [each for each in HEADS if each[0] * each[2] % BLOCK_SIZES[name] == 0]
        shape = random_dimensions(max(BLOCK_SIZES[name], 32), *heads[number % len(heads)], choose)
        keys = {f"{architecture}.attention.{which}_length": shape["head_dim"] for which in ("key", "value")}
        if like in f"{architecture}-{name}":
            path = write(folder / f"{architecture}-{name}.gguf", type=name, **shape, **keys)
            yield SeedModel(path, cache_options(number))


def models_of_all_architectures(folder: Path, like: str) -> Iterator[SeedModel]:
    """Write each reference model in F32 and in one of the types whose block size divides its rows."""
    for number, name in enumerate(reference_models.NAMES):
        types = "F32", SMALL_BLOCK_TYPES[1 + number % (len(SMALL_BLOCK_TYPES) - 1)]
        if any(like in f"{reference_models.architecture(name)}-{type}" for type in types):
            checkpoint = reference_models.checkpoint(name, folder)
            gguf = MutableGGUF.read(checkpoints.as_f32(checkpoint, folder / f"{name}.gguf"))
            for type in types:
                path = folder / f"{name}-{type}.gguf"
                path.write_bytes(replace(gguf, tensors=list(convert_matrices(type, gguf.tensors))).to_bytes())
                yield SeedModel(path, cache_options(number) if number % 2 else {})


def convert_matrices(type: str, tensors: Sequence[TensorEntry]) -> Iterator[TensorEntry]:
    """Yield the tensors with all weight matrices converted to this type."""
    for each in tensors:
        yield each if any(word in each.name for word in VECTOR_NAMES) else randomize_as_type(each, type, Random(0))


def cache_options(number: int) -> Layer:
    """Return cache types and a precision."""
    k, v = CACHES[number % len(CACHES)]
    return {"cache_type_k": k, "cache_type_v": v, "precision": PRECISIONS[number % len(PRECISIONS)]}


def random_dimensions(unit: int, n_head: int, n_head_kv: int, head_dim: int, choose: Random) -> dict[str, int]:
    """Return fields of `tiny.Dimensions`, with row lengths that are multiples of `unit`."""
    return {
        "n_layer": choose.choice((1, 1, 2, 3)), "n_embd": unit * choose.choice((1, 1, 2, 3)),
        "n_ff": unit * choose.choice((1, 2, 3, 5)), "n_head": n_head, "n_head_kv": n_head_kv, "head_dim": head_dim,
        "n_ctx": choose.choice((1, 40, 512)), "sliding_window": choose.choice((1, 5, 33)),
        "tied": choose.random() < 0.5,
    }  # fmt: skip


def model_writers() -> dict[str, Callable[..., Path]]:
    """Return the writer function of each architecture."""
    prefix = "tiny_"
    return {name.removeprefix(prefix): write for name, write in vars(tiny).items() if name.startswith(prefix)}

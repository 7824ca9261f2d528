"""Writes model files in real shapes with random weights, because timing does not depend on the values.

    python tests/benchmarks/shapes/synthetic.py /tmp/models Q4_K_M Q8_0                   # Llama-3.2-1B's shape
    python tests/benchmarks/shapes/synthetic.py /tmp/models IQ2_XS --layers 4 --vocab 32064

A recipe is one of llama-quantize's recipes, or a tensor type, which then applies to all matrices except the token
embeddings and the output layer. Writing a gigabyte takes about a second, because a megabyte of random blocks is
generated for each tensor and repeated. A folder in memory such as /dev/shm spares the disk. llama.cpp and localinfer
load the files. The tokenizer has bytes, a few merges, and tokens that no text produces. Needs the dependency group
`test`.
"""

import argparse
import itertools
import math
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np
from gguf import GGMLQuantizationType

sys.path.append(str(Path(__file__).parents[2]))
from locations import PYTHONPATH

sys.path[:0] = PYTHONPATH

import random_blocks  # noqa: E402
import tiny  # noqa: E402

from quant.ggml import TYPE_NUMBERS, nbytes  # noqa: E402

LLAMA_1B = tiny.Dimensions(n_layer=16, n_embd=2048, n_ff=8192, n_head=32, n_head_kv=8, head_dim=64, n_ctx=131072)
VOCABULARY = 128_256
FREQ_BASE = 500_000.0
CHUNK = 1 << 20  # bytes of random data per tensor, which are repeated


class Recipe(NamedTuple):
    """Tensor types as llama-quantize chooses them; "" is the base type."""

    base: str
    tokens: str  # token_embd, which is also the output layer
    more_bits: str = ""  # attn_v and ffn_down of the first and last layers, and of every third between
    attn_v: str = ""
    early_ffn_down: str = ""  # of the first eighth of the layers

    def type_of(self, name: str, n_layer: int) -> str:
        """Return the type of a tensor of a model with `n_layer` layers."""
        if name == "token_embd.weight":
            return self.tokens
        _, number, part, _ = name.split(".")
        layer, eighth = int(number), n_layer // 8
        if self.more_bits and part in ("attn_v", "ffn_down") and uses_more_bits(layer, n_layer):
            return self.more_bits
        if self.attn_v and part == "attn_v":
            return self.attn_v
        if self.early_ffn_down and part == "ffn_down" and layer < eighth:
            return self.early_ffn_down
        return self.base


def uses_more_bits(layer: int, n_layer: int) -> bool:
    """Whether llama.cpp's "_M" recipes use more bits for this layer."""
    eighth = n_layer // 8
    return layer < eighth or layer >= 7 * n_layer // 8 or (layer - eighth) % 3 == 2


def pure(base: str) -> Recipe:
    """Return a recipe with one type for all matrices except the token embeddings."""
    if base in (*random_blocks.FLOATS, "Q8_0"):
        return Recipe(base, base)
    coarse = base.startswith(("IQ1", "IQ2", "IQ3_XXS"))
    return Recipe(base, "Q5_K" if coarse else "Q6_K")


RECIPES: dict[str, Recipe] = {name: pure(name) for name in random_blocks.NAMES} | {
    "Q4_K_M": Recipe("Q4_K", "Q6_K", more_bits="Q6_K"),
    "Q5_K_M": Recipe("Q5_K", "Q6_K", more_bits="Q6_K"),
    "IQ4_XS": Recipe("IQ4_XS", "Q6_K", attn_v="Q5_K", early_ffn_down="Q5_K"),
}


def write(path: Path, recipe: str, *, n_layer: int = LLAMA_1B.n_layer, n_vocab: int = VOCABULARY) -> Path:
    """Write the file and flush it to the disk, because writing it back later would disturb the benchmark."""
    dimensions = replace(LLAMA_1B, n_layer=n_layer)
    shapes = tiny.common_shapes(dimensions, n_vocab)
    types = {
        name: "F32" if len(shape) == 1 else RECIPES[recipe].type_of(name, n_layer) for name, shape in shapes.items()
    }
    return write_file(path, metadata(recipe, dimensions, n_vocab), shapes, types)


def write_file(
    path: Path,
    keys: Mapping[str, tiny.Metadatum],
    shapes: Mapping[str, tuple[int, ...]],
    types: Mapping[str, str],
    embedding: float = 0.1,
) -> Path:
    """Write a file with this metadata and random tensors of these shapes and types. `embedding` is the standard
    deviation of the token embeddings; layers add values of about 1 to them."""
    writer = gguf.GGUFWriter(path, "")
    writer.kv_data[0].clear()  # the writer's own general.architecture: it is among ours
    for key, value in keys.items():
        tiny.add_key(writer, key, tiny.as_field(value))
    for name, shape in shapes.items():
        number = GGMLQuantizationType[types[name]]
        writer.add_tensor_info(name, shape, np.dtype(np.float32), tensor_bytes(shape, types[name]), number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("ab") as file:
        rng = np.random.default_rng(0)
        for name, shape in shapes.items():
            file.write(bytes(-file.tell() % writer.data_alignment))
            for part in random_tensor_data(rng, name, shape, types[name], embedding):
                file.write(part)
        file.write(bytes(-file.tell() % writer.data_alignment))
        file.flush()
        os.fsync(file.fileno())
    return path


def metadata(recipe: str, dimensions: tiny.Dimensions, n_vocab: int) -> Mapping[str, tiny.Metadatum]:
    """Return the metadata."""
    return (
        tiny.common_metadata("llama", dimensions)
        | {
            "general.name": f"synthetic {recipe}",
            "llama.rope.freq_base": FREQ_BASE,
            "llama.rope.dimension_count": dimensions.head_dim,
            "llama.vocab_size": n_vocab,
        }
        | vocabulary(n_vocab)
    )


def vocabulary(n_vocab: int) -> dict[str, tiny.Field]:
    """Return the byte-level BPE vocabulary of the tiny models, padded to n_vocab with tokens that no merge produces."""
    keys = tiny.bpe_vocabulary()
    n = tiny.n_tokens(keys)
    words = ("".join(letters) for letters in itertools.product("abcdefghijklmnopqrstuvwxyz", repeat=6))
    more = {
        "tokenizer.ggml.tokens": list(itertools.islice(words, n_vocab - n)),
        "tokenizer.ggml.token_type": [tiny.NORMAL] * (n_vocab - n),
    }
    return keys | {key: keys[key]._replace(value=[*keys[key].value, *values]) for key, values in more.items()}


def tensor_bytes(shape: tuple[int, ...], type_name: str) -> int:
    """Return the size of a tensor in bytes."""
    return nbytes(TYPE_NUMBERS[type_name], shape)


def random_tensor_data(
    rng: np.random.Generator, name: str, shape: tuple[int, ...], type_name: str, embedding: float
) -> Iterator[bytes]:
    """Yield the tensor's data, scaled so that activations keep their magnitude from layer to layer."""
    remaining = tensor_bytes(shape, type_name)
    if len(shape) == 1 or name.endswith(("ssm_a", "ssm_d")):
        yield np.full(shape, -1 if name.endswith("ssm_a") else 1, np.float32).tobytes()  # a state must forget
        return
    n_rows = min(math.prod(shape[:-1]), max(1, CHUNK // tensor_bytes(shape[-1:], type_name)))
    size = embedding if name == "token_embd.weight" else shape[-1] ** -0.5
    chunk = random_blocks.random_rows(rng, type_name, n_rows, shape[-1], size).tobytes()
    while remaining:
        yield chunk[:remaining]
        remaining -= min(remaining, len(chunk))


def main() -> None:
    """Parse the command line and write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("recipes", nargs="+", choices=RECIPES, metavar="RECIPE", help=", ".join(RECIPES))
    parser.add_argument("--layers", type=int, default=LLAMA_1B.n_layer, help="default: 16")
    parser.add_argument("--vocab", type=int, default=VOCABULARY, help=f"tokens (default: {VOCABULARY})")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for recipe in arguments.recipes:
        path = arguments.folder / f"synthetic-{recipe}.gguf"
        write(path, recipe, n_layer=arguments.layers, n_vocab=arguments.vocab)
        print(f"{path}: {path.stat().st_size / 1e9:.2f} GB")


if __name__ == "__main__":
    main()

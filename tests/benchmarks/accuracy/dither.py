"""A source for quantizers whose weights lie on no grid, made of a model whose weights do.

    python tests/benchmarks/accuracy/dither.py smollm2 smollm2-f32.gguf

Small models are published quantized. Decoded to floats, each weight of such a model lies on the grid of its old block,
and an encoder that finds this grid again loses nothing at all: what is measured is who guesses the old format, not who
keeps a model. So each weight is moved by uniform noise, half a step of its own block's grid to either side at most: it
may then be anything that this code stood for, and no grid helps anybody. What comes out is in F32, and is the model
that all files are compared with. How well it answers does not matter, as long as it is a language model, which it is:
the noise is no larger than the error that its file had already.

Only types whose codes are evenly spaced have a step. The same seed gives the same file.
"""

import argparse
import sys
import zlib
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[3])]

from localinfer.files.source import Source, SourceTensor  # noqa: E402
from localinfer.files.split import from_gguf  # noqa: E402
from localinfer.models.registry import find  # noqa: E402
from localinfer.quantizing.mixture import Request, mix  # noqa: E402
from localinfer.quantizing.quantize import compile_for, encoders, quantize  # noqa: E402
from localinfer.quantizing.recipe_rules import NUMBER_OF_TYPE  # noqa: E402
from localinfer.quantizing.recipes import FLOATS  # noqa: E402
from localinfer.quantizing.rows import Bytes, Floats, decoder_of, matrices, pieces  # noqa: E402
from quant import FORMATS  # noqa: E402

F32 = NUMBER_OF_TYPE["F32"]

# Where the low bits of a type's codes lie, and the byte that makes each of them 1.
ONES = {
    **dict.fromkeys(("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K"), ("qs", 17)),
    **dict.fromkeys(("Q2_K", "Q3_K"), ("qs", 85)),
    "Q6_K": ("ql", 0b0001_0001),
    "Q8_0": ("qs", 1),
}


def dithered(source: Path, target: Path, seed: int = 1) -> Path:
    """Write `target`, if it is not there: the model in F32, off its grids.

    Raises ValueError for a tensor of a type that has no even steps.
    """
    if not target.exists():
        found = without_grids(from_gguf(source), seed)
        mixture = mix(found, Request("F32"))
        compile_for({tensor.type for tensor in from_gguf(source).tensors.values()}, {F32}, "normal")
        quantize(found, target, mixture.types, encoder_of=encoders("normal", {}), fields=mixture.fields)
    return target


def without_grids(source: Source, seed: int) -> Source:
    """The same model, of which every tensor is in F32 and dithered when it is loaded."""
    loads = {name: partial(dither, tensor, seed) for name, tensor in source.tensors.items()}
    tensors = {name: replace(tensor, type=F32, load=loads[name]) for name, tensor in source.tensors.items()}
    return replace(source, tensors=tensors)


def dither(tensor: SourceTensor, seed: int) -> Bytes:
    """The bytes of a tensor in F32. The noise depends on its name, not on the order of tensors."""
    rng = np.random.default_rng([seed, zlib.crc32(tensor.name.encode())])
    values = np.empty((tensor.n_elements // tensor.shape[-1], tensor.shape[-1]), np.float32)
    data = tensor.load()
    for matrix in matrices(tensor, F32):
        for piece in pieces(matrix, data):
            x = values[piece.row : piece.row + piece.count]
            decoder_of(tensor.type).rows(piece.data, x)
            if tensor.type_name not in FLOATS:
                x += steps(tensor.type, piece.data, piece.shape) * (rng.random(x.shape, np.float32) - np.float32(0.5))
    return values.reshape(-1).view(np.uint8)


def steps(type_number: int, data: Bytes, shape: tuple[int, int]) -> Floats:
    """How far the next code is from each weight's own, never below 0: what codes of 1 decode to, less those of 0."""
    room = FORMATS[type_number].room
    if room.upper() not in ONES:
        raise ValueError(f"{room.upper()} has no even steps: it cannot be dithered")
    field, ones = ONES[room.upper()]
    blocks = data.copy().view(import_module(f"quant.formats.{room}").BLOCK)
    ends = np.empty((2, *shape), np.float32)
    for end, byte in zip(ends, (0, ones), strict=True):
        blocks[field] = byte
        decoder_of(type_number).rows(blocks.view(np.uint8), end)
    return np.abs(ends[1] - ends[0])


def main() -> None:
    """Parse the command line, write one file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("source", help="a name that was pulled, or a path")
    parser.add_argument("target", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    dithered(find(arguments.source), arguments.target, arguments.seed)


if __name__ == "__main__":
    main()

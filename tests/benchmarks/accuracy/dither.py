"""Writes a source model for quantizers whose weights lie on no quantization grid, from a quantized model.

    python tests/benchmarks/accuracy/dither.py smollm2 smollm2-f32.gguf

Small models are published quantized. Each dequantized weight lies on the grid of its old block, and an encoder
that finds this grid again loses nothing. Such a source measures how well an encoder detects the old format, not how
well it preserves a model. Therefore uniform noise moves each weight by at most half a step of its block's grid. The
result covers all values that the quant could have represented, and no grid is an advantage. It is written as F32 and is
the reference for all quantized files. The noise is no larger than the quantization error that the file already had, so
the result is still a language model.

Only types with evenly spaced values have a step. The same seed gives the same file.
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

from localinfer.gguf.gguf_source import from_gguf  # noqa: E402
from localinfer.gguf.source import Source, SourceTensor  # noqa: E402
from localinfer.hub.resolve import find  # noqa: E402
from localinfer.quantization.plan import Request, make_plan  # noqa: E402
from localinfer.quantization.quantize import compile_kernels, make_encoder_factory, quantize  # noqa: E402
from localinfer.quantization.recipes import FLOATS  # noqa: E402
from localinfer.quantization.rows import Bytes, Floats, get_decoder, matrices, row_slices  # noqa: E402
from quant import FORMATS  # noqa: E402
from quant.ggml import TYPE_NUMBERS  # noqa: E402

F32 = TYPE_NUMBERS["F32"]

# The position of the low bits of a type's quants, and the byte that sets each quant to 1.
ONE_BYTES = {
    **dict.fromkeys(("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K"), ("qs", 17)),
    **dict.fromkeys(("Q2_K", "Q3_K"), ("qs", 85)),
    "Q6_K": ("ql", 0b0001_0001),
    "Q8_0": ("qs", 1),
}


def write_dithered(source: Path, target: Path, seed: int = 1) -> Path:
    """Write the dithered model in F32 to `target` unless it exists.

    Raises ValueError for a tensor of a type whose values are not evenly spaced.
    """
    if not target.exists():
        actual = dithered_source(from_gguf(source), seed)
        mixture = make_plan(actual, Request("F32"))
        compile_kernels({tensor.type for tensor in from_gguf(source).tensors.values()}, {F32}, "normal")
        source_with_fields = replace(actual, fields=mixture.fields)
        quantize(source_with_fields, target, mixture.types, encoder_factory=make_encoder_factory("normal", {}))
    return target


def dithered_source(source: Source, seed: int) -> Source:
    """Return a source with all tensors in F32, dithered when they are loaded."""
    loads = {name: partial(dither, tensor, seed) for name, tensor in source.tensors.items()}
    tensors = {name: replace(tensor, type=F32, load=loads[name]) for name, tensor in source.tensors.items()}
    return replace(source, tensors=tensors)


def dither(tensor: SourceTensor, seed: int) -> Bytes:
    """Return the dithered tensor as F32 bytes. The noise depends on the seed and the tensor's name only."""
    rng = np.random.default_rng([seed, zlib.crc32(tensor.name.encode())])
    values = np.empty((tensor.n_elements // tensor.shape[-1], tensor.shape[-1]), np.float32)
    data = tensor.load()
    for matrix in matrices(tensor, F32):
        for piece in row_slices(matrix, data):
            x = values[piece.row : piece.row + piece.count]
            get_decoder(tensor.type).rows(piece.data, x)
            if tensor.type_name not in FLOATS:
                x += quantization_steps(tensor.type, piece.data, piece.shape) * (
                    rng.random(x.shape, np.float32) - np.float32(0.5)
                )
    return values.reshape(-1).view(np.uint8)


def quantization_steps(type_number: int, data: Bytes, shape: tuple[int, int]) -> Floats:
    """Return the step of each weight's block, >= 0: the value of quant 1 minus the value of quant 0."""
    module_name = FORMATS[type_number].format_module
    if module_name.upper() not in ONE_BYTES:
        raise ValueError(f"{module_name.upper()} has no even steps: it cannot be dithered")
    field, ones = ONE_BYTES[module_name.upper()]
    blocks = data.copy().view(import_module(f"quant.formats.{module_name}").BLOCK)
    ends = np.empty((2, *shape), np.float32)
    for end, byte in zip(ends, (0, ones), strict=True):
        blocks[field] = byte
        get_decoder(type_number).rows(blocks.view(np.uint8), end)
    return np.abs(ends[1] - ends[0])


def main() -> None:
    """Parse the command line and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("source", help="name of a downloaded model, or a path")
    parser.add_argument("target", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    write_dithered(find(arguments.source), arguments.target, arguments.seed)


if __name__ == "__main__":
    main()

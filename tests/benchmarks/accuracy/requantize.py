"""A GGUF file -> the same model with its matrices in another type, by llama.cpp's own quantizer.

    python tests/benchmarks/accuracy/requantize.py smollm2 smollm2-iq2_xs.gguf IQ2_XS

Every matrix is dequantized and quantized to the type (`llama-quantize --pure --allow-requantize`), but for the
tokens, which are Q8_0 unless the type is a float; where rows are no multiple of the type's 256 values, llama.cpp
takes its nearest type with blocks of 32. IQ1 ... IQ3_XXS need to know which inputs matter: the mean square of what
every matrix is multiplied with, over a text, measured in the oracle (naive.py). Needs the groups `test` and `bench`.
"""

import argparse
import collections
import ctypes
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, LlamaFileType
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).parents[2]))
from places import DATA, PYTHONPATH

sys.path[:0] = PYTHONPATH

import naive  # noqa: E402
from peer import C, Llama  # noqa: E402

from localinfer.files.gguf import open_gguf  # noqa: E402
from localinfer.models.registry import find  # noqa: E402

Importance = Mapping[str, NDArray[np.float32]]  # tensor name -> mean square of each input, (n_in,)

# Types whose file type has another name: the one that, without the rules of mixes, is all of this type.
FILE_TYPES = {"F32": "ALL_F32", "Q3_K": "MOSTLY_Q3_K_S", "Q4_K": "MOSTLY_Q4_K_S", "Q5_K": "MOSTLY_Q5_K_S",
              "IQ2_S": "MOSTLY_IQ2_M", "MXFP4": "MOSTLY_MXFP4_MOE"}  # fmt: skip
MIXES = ("Q4_K_M", "Q5_K_M")
TYPES = (
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL",
    "IQ4_XS", "MXFP4", "IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_S", "IQ1_M", "TQ1_0", "TQ2_0",
)  # fmt: skip
NEED_IMPORTANCE = ("IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_S", "IQ1_M")


def requantize(source: Path, target: Path, type_name: str, importance: Importance, threads: int = 2) -> Path:
    """Write `target`. RuntimeError where llama.cpp cannot."""
    params = C.llama_model_quantize_default_params()
    params.nthread, params.allow_requantize = threads, True
    params.ftype = file_type(type_name)
    if type_name not in MIXES:
        params.pure = True
        tokens = type_name if type_name in ("F32", "F16", "BF16") else "Q8_0"
        params.token_embedding_type = params.output_tensor_type = GGMLQuantizationType[tokens]
    entries = as_entries(importance) if type_name in NEED_IMPORTANCE else None
    if entries is not None:
        params.imatrix = entries
    if C.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params)):
        raise RuntimeError(f"llama.cpp cannot quantize {source.name} to {type_name}")
    return target


def file_type(type_name: str) -> int:
    """The number that llama.cpp's quantizer has for a type or a mix."""
    return LlamaFileType[FILE_TYPES.get(type_name, f"MOSTLY_{type_name}")]


def as_entries(importance: Importance) -> ctypes.Array:
    """As C wants it: one entry a tensor, and an empty one at the end."""
    entries = (C.llama_model_imatrix_data * (len(importance) + 1))()
    for entry, (name, values) in zip(entries, importance.items(), strict=False):
        entry.name, entry.size = name.encode(), len(values)
        entry.data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    return entries


class Observed(naive.Model):
    """The oracle, which notes what its matrices are multiplied with."""

    def __init__(self, path: Path) -> None:
        super().__init__(open_gguf(path), np.float32)
        self.squares: dict[str, list[NDArray[np.float32]]] = collections.defaultdict(list)

    def matmul(self, name: str, x: naive.Floats) -> naive.Floats:
        """(n, n_in) -> (n, n_out)"""
        self.squares[f"{name}.weight"].append(np.square(x).mean(axis=0, dtype=np.float32))
        return super().matmul(name, x)


def importance_of(path: Path, tokens: list[int]) -> Importance:
    """Which inputs matter, on a text; of the output layer it is not asked."""
    model = Observed(path)
    naive.hidden(model, tokens)
    return {name: np.ascontiguousarray(squares[0]) for name, squares in model.squares.items()}


def tokens_of(path: Path, text: Path, n: int) -> list[int]:
    """The first n tokens of a text."""
    with Llama(path, threads=1, n_ctx=64) as llama:
        return llama.tokenize(text.read_text(encoding="utf-8"))[:n]


def main() -> None:
    """Parse the command line, write one file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("source", help="a name that was pulled, or a path")
    parser.add_argument("target", type=Path)
    parser.add_argument("type", choices=(*TYPES, *MIXES))
    arguments = parser.parse_args()
    source = find(arguments.source)
    tokens = tokens_of(source, DATA / "varied.txt", 512)
    requantize(source, arguments.target, arguments.type, importance_of(source, tokens))


if __name__ == "__main__":
    main()

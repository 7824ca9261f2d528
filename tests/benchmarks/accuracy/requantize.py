"""Converts the matrices of a GGUF file to another type with llama.cpp's quantizer.

    python tests/benchmarks/accuracy/requantize.py smollm2 smollm2-iq2_xs.gguf IQ2_XS

Every matrix is dequantized and quantized to the type (`llama-quantize --pure --allow-requantize`), except the token
embeddings, which become Q8_0 unless the type is a float. If row lengths are no multiple of the type's 256 values,
llama.cpp uses its nearest type with blocks of 32. IQ1 ... IQ3_XXS need an importance matrix: the mean square of each
input over a text, measured with the naive forward pass. Needs the groups `test` and `bench`.
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
from locations import DATA, PYTHONPATH

sys.path[:0] = PYTHONPATH

from llama_cpp_engine import C, Llama  # noqa: E402

from localinfer import naive  # noqa: E402
from localinfer.gguf.reader import open_gguf  # noqa: E402
from localinfer.hub.resolve import find  # noqa: E402

Importance = Mapping[str, NDArray[np.float32]]  # tensor name -> mean square of each input, (n_in,)

# Types whose file type has another name: with --pure, that file type uses this type for all matrices.
FILE_TYPES = {"F32": "ALL_F32", "Q3_K": "MOSTLY_Q3_K_S", "Q4_K": "MOSTLY_Q4_K_S", "Q5_K": "MOSTLY_Q5_K_S",
              "IQ2_S": "MOSTLY_IQ2_M", "MXFP4": "MOSTLY_MXFP4_MOE"}  # fmt: skip
MIXES = ("Q4_K_M", "Q5_K_M")
TYPES = (
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL",
    "IQ4_XS", "MXFP4", "IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_S", "IQ1_M", "TQ1_0", "TQ2_0",
)  # fmt: skip
NEED_IMPORTANCE = ("IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_S", "IQ1_M")


def requantize(source: Path, target: Path, type_name: str, importance: Importance, threads: int = 2) -> Path:
    """Write `target`. Raises RuntimeError if llama.cpp fails."""
    params = C.llama_model_quantize_default_params()
    params.nthread, params.allow_requantize = threads, True
    params.ftype = file_type(type_name)
    if type_name not in MIXES:
        params.pure = True
        tokens = type_name if type_name in ("F32", "F16", "BF16") else "Q8_0"
        params.token_embedding_type = params.output_tensor_type = GGMLQuantizationType[tokens]
    entries = to_llama_cpp_entries(importance) if type_name in NEED_IMPORTANCE else None
    if entries is not None:
        params.imatrix = entries
    if C.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params)):
        raise RuntimeError(f"llama.cpp cannot quantize {source.name} to {type_name}")
    return target


def file_type(type_name: str) -> int:
    """Return llama.cpp's file type number of a type or recipe."""
    return LlamaFileType[FILE_TYPES.get(type_name, f"MOSTLY_{type_name}")]


def to_llama_cpp_entries(importance: Importance) -> ctypes.Array:
    """Return the importance matrix as a C array: one entry per tensor, and an empty one at the end."""
    entries = (C.llama_model_imatrix_data * (len(importance) + 1))()
    for entry, (name, values) in zip(entries, importance.items(), strict=False):
        entry.name, entry.size = name.encode(), len(values)
        entry.data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    return entries


class ObservingModel(naive.Model):
    """A reference model that records the mean square of the inputs of each matrix."""

    def __init__(self, path: Path) -> None:
        super().__init__(open_gguf(path), np.float32)
        self.squares: dict[str, list[NDArray[np.float32]]] = collections.defaultdict(list)

    def matmul(self, name: str, x: naive.Floats) -> naive.Floats:
        """(n, n_in) -> (n, n_out)"""
        self.squares[f"{name}.weight"].append(np.square(x).mean(axis=0, dtype=np.float32))
        return super().matmul(name, x)


def measure_importance(path: Path, tokens: list[int]) -> Importance:
    """Measure the importance matrix on tokens, except for the output layer."""
    model = ObservingModel(path)
    naive.final_hidden_states(model, tokens)
    return {name: np.ascontiguousarray(squares[0]) for name, squares in model.squares.items()}


def read_tokens(path: Path, text: Path, n: int) -> list[int]:
    """Return the first n tokens of a text."""
    with Llama(path, threads=1, n_ctx=64) as llama:
        return llama.tokenize(text.read_text(encoding="utf-8"))[:n]


def main() -> None:
    """Parse the command line and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("source", help="name of a downloaded model, or a path")
    parser.add_argument("target", type=Path)
    parser.add_argument("type", choices=(*TYPES, *MIXES))
    arguments = parser.parse_args()
    source = find(arguments.source)
    tokens = read_tokens(source, DATA / "varied.txt", 512)
    requantize(source, arguments.target, arguments.type, measure_importance(source, tokens))


if __name__ == "__main__":
    main()

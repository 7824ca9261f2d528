"""Compares the encoders of all block formats with ggml's quantizer: error and speed.

    python tests/benchmarks/encoders.py                                   # all formats with the effort `normal`
    chrt -r 30 python tests/benchmarks/encoders.py Q4_K Q6_K --efforts fast,normal

The weights are normal and heavy-tailed random numbers (Student's t, 3 degrees of freedom), and the first weights of
every matrix of two models, dequantized to float32 and scaled to the same size. An error is the root of the summed
squared error divided by that of ggml for the same weights: first without importance weights, then weighted by random
importance (chi-squared, 1 degree of freedom) that both encoders get. ggml gets ones if it requires importance weights.
Tensors that ggml encodes without loss are ignored. Speed is that of one thread in millions of weights per second.
Prints a Markdown table. Needs the groups `test` and `bench`.
"""

import argparse
import ctypes
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import llama_cpp
import numba  # noqa: F401  (kernels are compiled in this process then)
import numpy as np
from numpy.typing import NDArray

sys.path[:0] = [str(Path(__file__).parents[2])]

from localinfer import paths  # noqa: E402
from localinfer.gguf.reader import open_gguf  # noqa: E402
from localinfer.hub.resolve import find  # noqa: E402
from quant import BLOCK_TYPES, FORMATS  # noqa: E402
from quant.encoders.encoder import EFFORTS, Encoder  # noqa: E402
from quant.ggml import TYPES  # noqa: E402

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
NUMBERS = {kind.name: number for number, kind in TYPES.items() if number in FORMATS}
NEED_IMPORTANCE = ("IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_S", "IQ1_M")
MODELS = ("smollm2", "gemma3-270m")
ROWS, COLUMNS = 64, 2048


def ggml_library() -> ctypes.CDLL:
    """Load the library of llama.cpp that has the quantizer."""
    [path] = (Path(llama_cpp.__file__).parent / "lib").glob("libggml-base.so")
    library = ctypes.CDLL(str(path))
    number, address = ctypes.c_int64, ctypes.c_void_p
    library.ggml_quantize_chunk.argtypes = [ctypes.c_int, address, address, number, number, number, address]
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    return library


GGML = ggml_library()


def encode_with_ggml(name: str, x: Floats, importance: Floats | None, out: Bytes) -> None:
    """Encode rows with ggml."""
    if importance is None and name in NEED_IMPORTANCE:
        importance = np.ones(x.shape[1], np.float32)
    weights = None if importance is None else importance.ctypes.data
    GGML.ggml_quantize_chunk(NUMBERS[name], x.ctypes.data, out.ctypes.data, 0, *x.shape, weights)


def read_weights(model: str) -> Iterator[Floats]:
    """Yield the first weights of every matrix in rows of 256, the size of a superblock."""
    for tensor in open_gguf(find(model)).tensors.values():
        if len(tensor.shape) == 2:
            flat = gguf.dequantize(tensor.data.reshape(tensor.shape[0], -1)[:32], tensor.type).reshape(-1)
            x = flat[: min(flat.size // 256, 64) * 256].reshape(-1, 256)
            yield np.ascontiguousarray(x / x.std())


def weight_sets() -> dict[str, list[Floats]]:
    """Return the weights to encode, by name."""
    rng = np.random.default_rng(0)
    return {
        "normal": [rng.standard_normal((ROWS, COLUMNS)).astype(np.float32)],
        "heavy": [rng.standard_t(3, (ROWS, COLUMNS)).astype(np.float32)],
    } | {model: list(read_weights(model)) for model in MODELS}


def error(name: str, x: Floats, importance: Floats | None, out: Bytes) -> float:
    """Return the weighted squared error of encoded blocks."""
    off = x.astype(np.float64) - gguf.dequantize(out, gguf.GGMLQuantizationType[name])
    return float((off**2 * (1 if importance is None else importance)).sum())


def ratio(name: str, encoder: Encoder, tensors: list[Floats], *, weighted: bool) -> float:
    """Return our error divided by ggml's."""
    ours, reference = 0.0, 0.0
    for x in tensors:
        weights = np.random.default_rng(1).chisquare(1, x.shape[1]).astype(np.float32) if weighted else None
        out = np.empty((len(x), encoder.row_bytes(x.shape[1])), np.uint8)
        encode_with_ggml(name, x, weights, out)
        if (lost := error(name, x, weights, out)) > 1e-9 * x.size:
            reference += lost
            encoder.encode(x, weights, out)
            ours += error(name, x, weights, out)
    return float(np.sqrt(ours / reference)) if reference else float("nan")


def speed(call: Callable[[], None]) -> float:
    """Return millions of weights per second, the best of three runs of 0.25 s."""
    best = float("inf")
    for _ in range(3):
        start, calls = time.perf_counter(), 0
        while (used := time.perf_counter() - start) < 0.25 or not calls:
            call()
            calls += 1
        best = min(best, used / calls)
    return ROWS * COLUMNS / best / 1e6


def row(name: str, effort: str, data: dict[str, list[Floats]]) -> list[str]:
    """Return a row of the table."""
    encoder, x = Encoder(NUMBERS[name], effort, paths.jit_dir()), data["normal"][0]
    out = np.empty((ROWS, encoder.row_bytes(COLUMNS)), np.uint8)
    errors = [f"{ratio(name, encoder, x, weighted=weighted):.3f}" for weighted in (False, True) for x in data.values()]
    ours = speed(lambda: encoder.encode(x, None, out))
    reference = speed(lambda: encode_with_ggml(name, x, None, out))
    return [name, effort, *errors, f"{ours:.0f}", f"{reference:.0f}", f"{ours / reference:.1f}x"]


def main() -> None:
    """Parse the command line and print a row for each format and effort."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("formats", nargs="*", default=BLOCK_TYPES, help="names of tensor types")
    parser.add_argument("--efforts", default="normal", help=f"of {', '.join(EFFORTS)}")
    options, data = parser.parse_args(), weight_sets()
    heads = ["format", "effort", *data, *(f"{name}, importance" for name in data), "Mw/s", "ggml", "speed"]
    print("|", " | ".join(heads), "|\n|", " | ".join("---" for _ in heads), "|")
    for name in options.formats:
        for effort in options.efforts.split(","):
            print("|", " | ".join(row(name, effort, data)), "|", flush=True)


if __name__ == "__main__":
    main()

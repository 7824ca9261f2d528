"""How good are the blocks, and how fast are they made, against ggml's own quantizer?

    python tests/benchmarks/encoding.py                                   # every format at the effort `normal`
    chrt -r 30 python tests/benchmarks/encoding.py Q4_K Q6_K --efforts fast,normal

Weights: normal and heavy-tailed numbers (Student's t, 3 degrees of freedom), and the first of every matrix of two
models, decoded to float32 and brought to one size. An error is the root of the summed squared error over ggml's for
the same weights, first without importance, then with one (chi-squared, 1 degree of freedom) for either, weighted by it;
ggml gets ones where it cannot do without. A tensor that ggml encodes without any loss counts for nothing. Speed is that
of one thread, in millions of weights a second. Needs the groups `test` and `bench`. Prints a Markdown table.
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
from localinfer.files.gguf import open_gguf  # noqa: E402
from localinfer.models.registry import find  # noqa: E402
from quant import BLOCKS, FORMATS  # noqa: E402
from quant.encoders.encode import EFFORTS, Encoder  # noqa: E402
from quant.ggml import TYPES  # noqa: E402

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
NUMBERS = {kind.name: number for number, kind in TYPES.items() if number in FORMATS}
NEED_IMPORTANCE = ("IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_S", "IQ1_M")
MODELS = ("smollm2", "gemma3-270m")
ROWS, COLUMNS = 64, 2048


def ggml_library() -> ctypes.CDLL:
    """The part of llama.cpp that encodes."""
    [path] = (Path(llama_cpp.__file__).parent / "lib").glob("libggml-base.so")
    library = ctypes.CDLL(str(path))
    number, address = ctypes.c_int64, ctypes.c_void_p
    library.ggml_quantize_chunk.argtypes = [ctypes.c_int, address, address, number, number, number, address]
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    return library


GGML = ggml_library()


def by_ggml(name: str, x: Floats, importance: Floats | None, out: Bytes) -> None:
    """Rows as ggml encodes them."""
    if importance is None and name in NEED_IMPORTANCE:
        importance = np.ones(x.shape[1], np.float32)
    weights = None if importance is None else importance.ctypes.data
    GGML.ggml_quantize_chunk(NUMBERS[name], x.ctypes.data, out.ctypes.data, 0, *x.shape, weights)


def weights_of(model: str) -> Iterator[Floats]:
    """The first weights of every matrix, in rows of 256: what a superblock is made of."""
    for tensor in open_gguf(find(model)).tensors.values():
        if len(tensor.shape) == 2:
            flat = gguf.dequantize(tensor.data.reshape(tensor.shape[0], -1)[:32], tensor.type).reshape(-1)
            x = flat[: min(flat.size // 256, 64) * 256].reshape(-1, 256)
            yield np.ascontiguousarray(x / x.std())


def sources() -> dict[str, list[Floats]]:
    """What is encoded."""
    rng = np.random.default_rng(0)
    return {
        "normal": [rng.standard_normal((ROWS, COLUMNS)).astype(np.float32)],
        "heavy": [rng.standard_t(3, (ROWS, COLUMNS)).astype(np.float32)],
    } | {model: list(weights_of(model)) for model in MODELS}


def error(name: str, x: Floats, importance: Floats | None, out: Bytes) -> float:
    """The weighted squared error of blocks."""
    off = x.astype(np.float64) - gguf.dequantize(out, gguf.GGMLQuantizationType[name])
    return float((off**2 * (1 if importance is None else importance)).sum())


def ratio(name: str, encoder: Encoder, tensors: list[Floats], *, weighted: bool) -> float:
    """Our error over ggml's."""
    ours, theirs = 0.0, 0.0
    for x in tensors:
        weights = np.random.default_rng(1).chisquare(1, x.shape[1]).astype(np.float32) if weighted else None
        out = np.empty((len(x), encoder.row_bytes(x.shape[1])), np.uint8)
        by_ggml(name, x, weights, out)
        if (lost := error(name, x, weights, out)) > 1e-9 * x.size:
            theirs += lost
            encoder.rows(x, weights, out)
            ours += error(name, x, weights, out)
    return float(np.sqrt(ours / theirs)) if theirs else float("nan")


def speed(call: Callable[[], None]) -> float:
    """Millions of weights a second, the best of three times a quarter of a second."""
    best = float("inf")
    for _ in range(3):
        start, calls = time.perf_counter(), 0
        while (taken := time.perf_counter() - start) < 0.25 or not calls:
            call()
            calls += 1
        best = min(best, taken / calls)
    return ROWS * COLUMNS / best / 1e6


def row(name: str, effort: str, data: dict[str, list[Floats]]) -> list[str]:
    """A line of the table."""
    encoder, x = Encoder(NUMBERS[name], effort, paths.jit_dir()), data["normal"][0]
    out = np.empty((ROWS, encoder.row_bytes(COLUMNS)), np.uint8)
    errors = [f"{ratio(name, encoder, x, weighted=weighted):.3f}" for weighted in (False, True) for x in data.values()]
    ours = speed(lambda: encoder.rows(x, None, out))
    theirs = speed(lambda: by_ggml(name, x, None, out))
    return [name, effort, *errors, f"{ours:.0f}", f"{theirs:.0f}", f"{ours / theirs:.1f}x"]


def main() -> None:
    """Parse the command line; a row for each format and effort."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("formats", nargs="*", default=BLOCKS, help="names of tensor types")
    parser.add_argument("--efforts", default="normal", help=f"of {', '.join(EFFORTS)}")
    options, data = parser.parse_args(), sources()
    heads = ["format", "effort", *data, *(f"{name}, importance" for name in data), "Mw/s", "ggml", "speed"]
    print("|", " | ".join(heads), "|\n|", " | ".join("---" for _ in heads), "|")
    for name in options.formats:
        for effort in options.efforts.split(","):
            print("|", " | ".join(row(name, effort, data)), "|", flush=True)


if __name__ == "__main__":
    main()

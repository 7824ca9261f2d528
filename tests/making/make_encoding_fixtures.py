"""Measure the errors of ggml's encoders and write data/encoding_errors.json.

    python tests/making/make_encoding_fixtures.py libggml-base.so smollm2.gguf gemma3-270m.gguf

The library is that of llama-cpp-python; `localinfer pull` downloads the models.
"""

import ctypes
import json
import sys
from pathlib import Path

import gguf
import numpy as np

sys.path.append(str(Path(__file__).parents[1]))
from locations import PYTHONPATH

sys.path[:0] = PYTHONPATH

import encoding_errors as errors  # noqa: E402

NAMES = [
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"),
    *("IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_S", "IQ1_M"),
]


def ggml_error(
    ggml: ctypes.CDLL, name: str, x: errors.Floats, importance: errors.Floats | None, weight: object
) -> float:
    """Return the error of ggml's encoder with a given importance, measured with a weight."""
    number, (rows, n) = gguf.GGMLQuantizationType[name], x.shape
    elements, size = gguf.GGML_QUANT_SIZES[number]
    out = np.zeros((rows, n // elements * size), np.uint8)
    importance_pointer = None if importance is None else importance.ctypes.data
    integer, address = ctypes.c_int64, ctypes.c_void_p
    ggml.ggml_quantize_chunk.argtypes = [ctypes.c_int, address, address, integer, integer, integer, address]
    ggml.ggml_quantize_chunk(number, x.ctypes.data, out.ctypes.data, 0, rows, n, importance_pointer)
    return errors.relative_error(x, gguf.dequantize(out, number), weight)


def main(library: str, smollm2: str, gemma3: str) -> None:
    ggml = ctypes.CDLL(library)
    ggml.ggml_quantize_requires_imatrix.restype = ctypes.c_bool
    samples = {
        "gaussian": errors.gaussian(),
        "heavy_tailed": errors.heavy_tailed(),
        "smollm2": errors.trained(Path(smollm2)),
        "gemma3": errors.trained(Path(gemma3)),
    }
    measured: dict[str, dict[str, list[float]]] = {}
    for sample, x in samples.items():
        ones, weight = np.ones(x.shape[1], np.float32), errors.importance(x.shape[1])
        measured[sample] = {}
        for name in NAMES:
            ggml.ggml_quantize_init(gguf.GGMLQuantizationType[name])
            plain = ggml_error(ggml, name, x, ones, 1.0)
            if not ggml.ggml_quantize_requires_imatrix(gguf.GGMLQuantizationType[name]):
                plain = min(plain, ggml_error(ggml, name, x, None, 1.0))
            measured[sample][name] = [round(plain, 6), round(ggml_error(ggml, name, x, weight, weight), 6)]
    lines = ",\n".join(f' "{sample}": {json.dumps(by_type)}' for sample, by_type in measured.items())
    errors.FILE.write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

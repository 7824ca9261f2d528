"""Compares quantized checkpoints as localinfer converts them with llama.cpp's converter, and 8-bit floats with torch.

    pip download --no-deps --no-binary :all: llama-cpp-python && tar xf llama_cpp_python-*.tar.gz
    python tests/benchmarks/checks/quantized_checkpoints.py llama_cpp_python-*/vendor/llama.cpp

The formats are those of `tests/models/quantized_formats.py`. llama.cpp's converter refuses some of them. Exits with
1 if a value differs by more than a rounding in float32. Needs torch and transformers.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[2]))
from locations import PYTHONPATH

sys.path[:0] = PYTHONPATH

from quantized_formats import FORMATS, both  # noqa: E402
from stored_tensors import folder_of  # noqa: E402

MODEL = "llama2"
ROUNDING = 2.0**-22  # llama.cpp subtracts and multiplies in another order
CONVERT = """
import runpy, sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/gguf-py"]
from conversion.base import TextModel
from conversion.llama import LlamaModel
LlamaModel.set_vocab = TextModel._set_vocab_none
sys.argv = ["convert_hf_to_gguf.py", sys.argv[2], "--outfile", sys.argv[3], "--outtype", "f32"]
runpy.run_path(sys.path[0] + "/convert_hf_to_gguf.py", run_name="__main__")
"""


def main() -> None:
    llama_cpp, differing = Path(sys.argv[1]).absolute(), check_8_bit_floats()
    print("| format | tensors | largest difference |\n|---|---|---|")
    for kind, (config, quantized) in FORMATS.items():
        with tempfile.TemporaryDirectory() as temporary:
            stored = both(MODEL, quantized)[1]
            folder = folder_of(MODEL, Path(temporary) / "tiny", stored, quantization_config=config)
            result, difference = compare(folder, llama_cpp)
        print(f"| {kind} | {result} | {difference:.1e} |", flush=True)
        differing += difference > ROUNDING
    sys.exit(bool(differing))


def check_8_bit_floats() -> int:
    """Return how many of all 8-bit floats have another value than in torch."""
    import torch

    from localinfer.conversion.tensor_formats.dequantized_matrix import DECODERS

    codes = torch.arange(256, dtype=torch.uint8)
    kinds = {"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu}
    differing = 0
    for name, kind in kinds.items():
        expected = codes.view(kind).float().numpy()
        same = DECODERS[name](codes.numpy()) == expected
        wrong = int((~(same | np.isnan(expected))).sum())
        print(f"{name}: {256 - wrong} of 256 values as in torch")
        differing += wrong
    return differing


def compare(folder: Path, llama_cpp: Path) -> tuple[str, float]:
    """Return a count of tensors, or why there is none, and the largest difference relative to the largest value."""
    from localinfer.conversion import open_checkpoint
    from localinfer.gguf.reader import open_gguf

    out = folder / "model.gguf"
    completed = subprocess.run(
        [sys.executable, "-c", CONVERT, llama_cpp, folder, out], capture_output=True, text=True, check=False
    )
    if completed.returncode:
        return f"llama.cpp: {completed.stderr.strip().splitlines()[-1][:100]}", 0.0
    theirs, ours = open_gguf(out).tensors, open_checkpoint(folder).tensors
    if theirs.keys() != ours.keys():
        return f"not in both: {sorted(theirs.keys() ^ ours.keys())[:3]}", float("inf")
    return str(len(ours)), max(relative(ours[name].load(), theirs[name].data) for name in ours)


def relative(actual: Any, expected: Any) -> float:
    actual, expected = actual.view(np.float32), expected.view(np.float32)
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


if __name__ == "__main__":
    main()

"""Checks why llama.cpp's logits differ in models with GELU: it computes the activation in F16, from a table.

    python tests/benchmarks/checks/llama_cpp_gelu.py             # t5-gated gemma2 bloom
    python tests/benchmarks/checks/llama_cpp_gelu.py falcon      # other reference models

Prints the largest difference between two logits of llama.cpp and of the naive forward pass in float64, once with the
tanh approximation of GELU, which llama.cpp uses for all of them, and once with that of ggml (`ggml_vec_gelu_f32`): x is
rounded to F16, and so is the result; from a magnitude of 10 on it is x or 0. Files and the KV cache are in F32. Needs
the dependency groups `test` and `bench`.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[2]))
from locations import PYTHONPATH

sys.path[:0] = PYTHONPATH

import checkpoints  # noqa: E402
import reference_models  # noqa: E402
from conversion import by_llama_cpp  # noqa: E402

from localinfer import naive  # noqa: E402
from localinfer.gguf.reader import open_gguf  # noqa: E402
from localinfer.naive.formulas import ACTIVATIONS, Floats, gelu  # noqa: E402


def gelu_of_ggml(x: Floats) -> Floats:
    """Return the tanh approximation of GELU with x and the result in F16."""
    rounded = gelu(x.astype(np.float16).astype(np.float32)).astype(np.float16)
    return np.where(np.abs(x) < 10, rounded.astype(x.dtype), np.maximum(x, 0))


def main() -> None:
    print("| model | largest difference | with GELU in F16 |")
    print("|---|---|---|")
    for name in sys.argv[1:] or ("t5-gated", "gemma2", "bloom"):
        theirs, ids = by_llama_cpp(name), reference_models.expected(name).ids
        with tempfile.TemporaryDirectory() as folder:
            path = checkpoints.as_f32(reference_models.checkpoint(name, Path(folder)), Path(folder) / "model.gguf")
            model, differences = naive.Model(open_gguf(path)), []
            for activation in (gelu, gelu_of_ggml):
                ACTIVATIONS["gelu"] = ACTIVATIONS["gelu_erf"] = activation
                logits = naive.forward(model, ids)[-len(theirs) :]
                differences.append(f"{np.abs(logits - theirs).max():.1e}")
        print(f"| {name} | {' | '.join(differences)} |")


if __name__ == "__main__":
    main()

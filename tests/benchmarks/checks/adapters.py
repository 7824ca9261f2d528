"""Compares the logits of LoRA adapters and control vectors with those of llama.cpp, on tiny models with random weights.

    python tests/benchmarks/checks/adapters.py

Needs the dependency groups `test` and `bench`. Both read the same GGUF files; weights, adapters and cache are F32. With
F16, llama.cpp rounds the inputs of products to F16. Prints the largest difference of each case, and fails if one is
more than 1e-3 above that of the model without adapters: gemma3's is 2e-3, as llama.cpp looks up GELU in a table.
"""

import ctypes
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).parents[2]))
from locations import PYTHONPATH

sys.path[:0] = [*PYTHONPATH, str(Path(__file__).parents[1])]

import llama_cpp as C  # noqa: E402
from llama_cpp_engine import Llama  # noqa: E402
from lora_adapter import control_vector, random_pairs  # noqa: E402
from tiny import tiny_gemma3, tiny_llama, tiny_qwen2, tiny_qwen3moe  # noqa: E402

import localinfer  # noqa: E402

IDS = list(range(5, 45))
LIMIT = 1e-3
ATTENTION = {
    "blk.0.attn_q.weight": (256, 256), "blk.1.attn_v.weight": (128, 256), "blk.0.attn_output.weight": (256, 256),
}  # fmt: skip
FFN = {"blk.1.ffn_down.weight": (256, 512), "blk.0.ffn_gate.weight": (512, 256)}
EXPERTS = {"blk.0.ffn_up_exps.weight": (10, 512, 256), "blk.1.ffn_down_exps.weight": (10, 256, 512)}
Floats = NDArray[np.float32]
Scaled = Sequence[tuple[Path, float]]


def main() -> None:
    """Run all cases."""
    makers = {"llama": tiny_llama, "qwen2": tiny_qwen2, "gemma3": tiny_gemma3, "qwen3moe": tiny_qwen3moe}
    failed = False
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, make in makers.items():
            model, shapes = make(folder / f"{name}.gguf", type="F32"), ATTENTION | (EXPERTS if "moe" in name else FFN)
            one = random_pairs(folder / f"{name}-1.gguf", shapes, architecture=name)
            two = random_pairs(folder / f"{name}-2.gguf", shapes, architecture=name, rank=17, seed=1)
            cases: dict[str, Scaled] = {"none": [], "one": [(one, 1.0)], "two": [(one, 0.5), (two, -0.75)]}
            differences = {case: compare(f"{name}, {case}", model, adapters) for case, adapters in cases.items()}
            failed |= max(differences.values()) > differences["none"] + LIMIT
        rng = np.random.default_rng(0)
        directions = {layer: rng.standard_normal(256).astype(np.float32) for layer in range(1, 7)}
        path = control_vector(folder / "vector.gguf", directions)
        for first, last in (1, 6), (2, 4):
            case = f"gemma3, control vector of {first} to {last}"
            difference = compare_vector(case, folder / "gemma3.gguf", path, directions, (first, last))
            failed |= difference > 4 * LIMIT
    sys.exit(failed)


def compare(case: str, model: Path, adapters: Scaled) -> float:
    """Return the largest difference with these adapters."""
    ours = logits(model, lora_scaled=tuple(f"{path}:{scale}" for path, scale in adapters))
    with Llama(model, threads=2, n_ctx=256, flash_attn="off", cache="f32") as llama:
        opened = [C.llama_adapter_lora_init(llama.model, str(path).encode()) for path, _ in adapters]
        kind = C.llama_adapter_lora_p_ctypes
        pointers = (kind * len(opened))(*(ctypes.cast(each, kind) for each in opened))
        scales = (ctypes.c_float * len(opened))(*(scale for _, scale in adapters))
        if opened and C.llama_set_adapters_lora(llama.context, pointers, len(opened), scales):
            raise RuntimeError("llama.cpp cannot apply the adapters")
        return report(case, ours, llama.logits(IDS))


def compare_vector(
    case: str, model: Path, path: Path, directions: Mapping[int, Floats], layers: tuple[int, int]
) -> float:
    """Return the largest difference with a control vector, times 0.5, after these layers."""
    first, last = layers
    ours = logits(model, control_vector_scaled=(f"{path}:0.5",), control_vector_layer_range=f"{first},{last}")
    data = np.concatenate([0.5 * directions[layer] for layer in sorted(directions)]).astype(np.float32)
    pointer = data.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    with Llama(model, threads=2, n_ctx=256, flash_attn="off", cache="f32") as llama:
        if C.llama_set_adapter_cvec(llama.context, pointer, data.size, 256, first, last):
            raise RuntimeError("llama.cpp cannot apply the control vector")
        return report(case, ours, llama.logits(IDS))


def logits(model: Path, **options: object) -> Floats:
    """Return our logits."""
    exact = {"threads": 2, "ctx_size": 128, "precision": "high", "cache_type_k": "f32", "cache_type_v": "f32"}
    with localinfer.load(model, **exact, **options) as opened:  # type: ignore[arg-type]
        return opened.logits(IDS)


def report(case: str, ours: Floats, theirs: Floats) -> float:
    """Print and return the largest difference."""
    difference = float(np.abs(ours - theirs).max())
    print(f"{case:36} {difference:.1e}")
    return difference


if __name__ == "__main__":
    main()

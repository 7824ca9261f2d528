"""Compares captured activations with transformers: hidden states, attention weights and logits of tiny checkpoints.

    python tests/benchmarks/checks/captured_activations.py
    python tests/benchmarks/checks/captured_activations.py llama3 gemma2

The checkpoints are the reference models of the tests. The differences are the largest ones, of hidden states relative
to the largest magnitude of the layer. Exits with 1 if one is more than LIMIT. Needs torch and transformers.
"""

import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).parents[2]))
from locations import PYTHONPATH

sys.path[:0] = PYTHONPATH

import checkpoints  # noqa: E402
import reference_models  # noqa: E402

import localinfer  # noqa: E402

LIMIT = 1e-4
MODELS = ["gemma2", "gpt2", "gpt-oss", "llama3", "mixtral", "olmo2", "phi2", "qwen2moe", "qwen3"]
N_TOKENS = 40
EXACT = {"ctx_size": 128, "threads": 1, "precision": "high", "cache_type_k": "f32", "cache_type_v": "f32"}
Floats = NDArray[np.float32]


def main() -> None:
    """Compare the models that the arguments name."""
    warnings.filterwarnings("ignore")
    worst = 0.0
    for name in sys.argv[1:] or MODELS:
        with tempfile.TemporaryDirectory() as folder:
            found = differences(name, Path(folder))
        print(f"{name:12}", *(f"{what} {value:.1e}" for what, value in found.items()), flush=True)
        worst = max(worst, *found.values())
    sys.exit(worst > LIMIT)


def differences(name: str, folder: Path) -> dict[str, float]:
    """Return the largest difference of each kind of activations."""
    import torch
    import transformers

    checkpoint, ids = reference_models.checkpoint(name, folder), reference_models.expected(name).ids[:N_TOKENS]
    model = transformers.AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        out = model(torch.tensor([ids]), output_hidden_states=True, output_attentions=True)
    path = checkpoints.as_type(checkpoint, folder / "model.gguf", "F32")
    points = "blk.*.resid_p*", "blk.*.attn_weights", "output_norm", "logits"
    with localinfer.load(path, **EXACT) as loaded, loaded.capture(*points) as trace:
        loaded.logits(ids)
    n_layers = len(out.hidden_states) - 1
    own = [trace["blk.0.resid_pre"], *(trace[f"blk.{number}.resid_post"] for number in range(n_layers - 1))]
    expected = [states[0].numpy() for states in out.hidden_states]  # the last ones are those after the output norm
    states = [relative(x, y) for x, y in zip([*own, trace["output_norm"]], expected, strict=True)]
    weights = [
        float(np.abs(trace[f"blk.{number}.attn_weights"] - each[0].numpy()).max())
        for number, each in enumerate(out.attentions)
    ]
    return {
        "hidden states": max(states),
        "attention weights": max(weights),
        "logits": relative(trace["logits"], out.logits[0].numpy()),
    }


def relative(actual: Floats, expected: Floats) -> float:
    """Return the largest difference, relative to the largest magnitude."""
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


if __name__ == "__main__":
    main()

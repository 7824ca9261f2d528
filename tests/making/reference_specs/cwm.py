"""Code World Model: Llama with windows in three of four layers."""

from reference_spec import WINDOW, Spec, rope, sizes
from transformers import CwmConfig

LLAMA3 = {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 32}
MODELS = {
    "cwm": Spec(
        architecture="llama", saved=True,
        config=CwmConfig(**sizes(3, 1, 4, head_dim=32) | rope("llama3", 1e6, **LLAMA3), sliding_window=WINDOW),
    ),
}  # fmt: skip

"""Options of RoPE, YaRN and overridden metadata, and the logits that llama.cpp computes with them.

data/rope_settings.npz has the logits of each case at some positions of the reference model's text;
make_rope_fixtures.py writes it.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from locations import DATA
from numpy.typing import NDArray

FILE = DATA / "rope_settings.npz"
POSITIONS = [40, 95]
CASES: Mapping[str, tuple[str, Mapping[str, Any]]] = {  # name: the reference model, and the options
    "base": ("qwen3", {"rope_freq_base": 5e5}),
    "scale": ("qwen3", {"rope_scale": 4.0}),
    "frequency scale": ("qwen3", {"rope_freq_scale": 0.5, "rope_freq_base": 2e4}),
    "linear": ("llama-yarn", {"rope_scaling": "linear", "rope_scale": 2.0}),
    "none": ("llama-yarn", {"rope_scaling": "none"}),
    "YaRN": ("qwen3", {"rope_scaling": "yarn", "rope_scale": 4.0, "yarn_orig_ctx": 32}),
    "other YaRN": (
        "llama-yarn", {"rope_scale": 8.0, "yarn_orig_ctx": 48, "yarn_beta_fast": 16.0, "yarn_beta_slow": 2.0},
    ),
    "half extrapolated": ("llama-yarn", {"yarn_ext_factor": 0.5}),
    "extrapolated without YaRN": ("qwen3", {"rope_freq_scale": 0.25, "yarn_ext_factor": 1.0}),
    "not extrapolated": ("llama-yarn", {"yarn_ext_factor": 0.0, "yarn_attn_factor": 1.25}),
    "attention factor of YaRN": ("llama-yarn", {"yarn_attn_factor": 1.25}),
    "fewer experts": ("qwen3moe", {"override_kv": ("qwen3moe.expert_used_count=int:1",)}),
    "epsilon": ("qwen3", {"override_kv": ("qwen3.attention.layer_norm_rms_epsilon=float:0.01",)}),
}  # fmt: skip


def expected(name: str) -> NDArray[np.float32]:
    """Return llama.cpp's logits of a case at POSITIONS, float32 (n_positions, n_vocab)."""
    with np.load(FILE) as stored:
        return np.asarray(stored[name])

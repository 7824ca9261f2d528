"""PLaMo 2: Mamba 2 in most layers, attention with a sliding window in the others."""

from typing import Any

from plamo2_model import Plamo2ForCausalLM
from reference_spec import WINDOW, Spec, sizes
from transformers import PreTrainedConfig


def written(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of published checkpoints."""
    return config | {"architectures": ["Plamo2ForCausalLM"], "model_type": "plamo2"}


def plamo2(**keys: Any) -> Spec:
    config = PreTrainedConfig(**keys, rms_norm_eps=1e-6, mamba_enabled=True)
    return Spec(architecture="plamo2", model=Plamo2ForCausalLM, norm=0.0, written=written, config=config)


MODELS = {
    "plamo2": plamo2(
        **sizes(6, 2), hidden_size_per_head=32, attention_window_size=256, full_attention_idx=[], mamba_d_state=32,
        mamba_d_conv=4, mamba_num_heads=4, mamba_step=2,
    ),
    "plamo2-narrow": plamo2(
        **sizes(4, 1, 5, hidden_size=64), hidden_size_per_head=16, attention_window_size=WINDOW,
        full_attention_idx=[4], mamba_d_state=16, mamba_d_conv=3, mamba_num_heads=6, mamba_step=3,
    ),
}  # fmt: skip

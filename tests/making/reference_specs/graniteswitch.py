"""Granite Switch. Control tokens are in several parts of the text, and several of them have the mean of their adapters.
With a small gain, the other tokens count as well, so that adapters end."""

from typing import Any

from graniteswitch_model import GraniteSwitchForCausalLM
from reference_spec import Spec, sizes
from transformers import PreTrainedConfig


def written(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration as published ones are, which count a layer without weights, and have keys of hybrids."""
    layers = config["num_hidden_layers"] + 1
    own = {"model_type": "granite_switch", "num_hidden_layers": layers, "layer_types": ["attention"] * layers}
    without_effect = {"num_local_experts": 0, "num_experts_per_tok": 8, "mamba_d_state": 256}
    return config | own | without_effect | {"hidden_act": "silu", "position_embedding_type": "rope"}


def common(n_ff: int, **more: Any) -> dict[str, Any]:
    return {"intermediate_size": n_ff, "shared_intermediate_size": n_ff, "tie_word_embeddings": True, **more}


MODELS = {
    "graniteswitch": Spec(
        architecture="graniteswitch", model=GraniteSwitchForCausalLM, written=written,
        config=PreTrainedConfig(
            **sizes(3, 1) | common(160), num_adapters=4, max_lora_rank=32, adapter_token_ids=[44, 58, 170, 121],
            adapter_substitute_token_ids=[45, 260, 58, 32], control_token_gain=15.0, attention_multiplier=0.125,
            embedding_multiplier=3.0, residual_multiplier=0.5, logits_scaling=4.0, rms_norm_eps=1e-5, rope_theta=1e4,
        ),
    ),
    "graniteswitch-narrow": Spec(
        architecture="graniteswitch", model=GraniteSwitchForCausalLM, written=written,
        config=PreTrainedConfig(
            **sizes(4, 2, 3) | common(96, hidden_size=64), num_adapters=7, max_lora_rank=8,
            adapter_token_ids=[117, 37, 38, 58, 39, 170, 195], adapter_substitute_token_ids=[1, 2, 3, 4, 5, 6, 7],
            control_token_gain=1.6, attention_multiplier=0.25, embedding_multiplier=1.0, residual_multiplier=1.0,
            logits_scaling=1.0, rms_norm_eps=1e-6, rope_theta=1e6,
        ),
    ),
}  # fmt: skip

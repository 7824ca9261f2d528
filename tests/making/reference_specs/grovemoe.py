"""GroveMoE, whose tokens use three of eight experts, and five of ten, of which two share an adjugate expert."""

from typing import Any

from grovemoe_model import GroveMoeForCausalLM
from reference_spec import Spec, sizes
from transformers import PreTrainedConfig


def written(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration with the names of published checkpoints."""
    own = {"model_type": "grove_moe", "hidden_act": "silu", "moe_intermediate_size": config["expert_size"]}
    return {key: value for key, value in config.items() if key != "expert_size"} | own


MODELS = {
    "grovemoe": Spec(
        architecture="grovemoe", model=GroveMoeForCausalLM, written=written,
        config=PreTrainedConfig(
            **sizes(3, 1, 3, head_dim=64), num_experts=8, num_experts_per_tok=3, expert_size=96, rms_norm_eps=1e-6,
            rope_theta=1e6,
        ),
    ),
    "grovemoe-narrow": Spec(
        architecture="grovemoe", model=GroveMoeForCausalLM, written=written,
        config=PreTrainedConfig(
            **sizes(4, 2, 2, hidden_size=64, head_dim=32), num_experts=10, num_experts_per_tok=5, expert_size=64,
            rms_norm_eps=1e-5, rope_theta=1e4,
        ),
    ),
}  # fmt: skip

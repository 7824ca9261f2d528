"""Talkie, with as many heads of keys as of queries, and with fewer."""

from reference_spec import Spec, sizes
from talkie_model import TalkieForCausalLM
from transformers import PreTrainedConfig

MODELS = {
    "talkie": Spec(
        architecture="talkie", model=TalkieForCausalLM, written=lambda config: config | {"model_type": "talkie"},
        config=PreTrainedConfig(**sizes(3, 3, 3, head_dim=32), rope_theta=1e6),
    ),
    "talkie-narrow": Spec(
        architecture="talkie", model=TalkieForCausalLM, written=lambda config: config | {"model_type": "talkie"},
        config=PreTrainedConfig(**sizes(4, 2, 2, hidden_size=64, head_dim=32), rope_theta=1e4),
    ),
}  # fmt: skip

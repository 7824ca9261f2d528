"""Nanbeige: two and three passes over the layers, with and without norms between them."""

from nanbeige_model import NanbeigeForCausalLM
from reference_spec import Spec, sizes
from transformers import PreTrainedConfig

MODELS = {
    "nanbeige": Spec(
        architecture="nanbeige", model=NanbeigeForCausalLM, written=lambda config: config | {"model_type": "nanbeige"},
        config=PreTrainedConfig(
            **sizes(3, 1, 3, head_dim=64), rms_norm_eps=1e-5, rope_theta=7e6, num_loops=2, skip_loop_final_norm=False,
        ),
    ),
    "nanbeige-unnormed": Spec(
        architecture="nanbeige", model=NanbeigeForCausalLM, written=lambda config: config | {"model_type": "nanbeige"},
        config=PreTrainedConfig(
            **sizes(4, 2, hidden_size=64), rms_norm_eps=1e-6, rope_theta=1e4, num_loops=3, skip_loop_final_norm=True,
        ),
    ),
}  # fmt: skip

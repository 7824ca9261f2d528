"""Kolibri 1: experts of a biased router, and layers with a window."""

from reference_spec import WINDOW, Spec, rope, sizes
from transformers import Kolibri1Config

EXPERTS = {
    "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 96,
    "sliding_window": WINDOW,
}  # fmt: skip
MODELS = {
    "kolibri1": Spec(
        architecture="kolibri1", saved=True,
        config=Kolibri1Config(**sizes(3, 1, 5, head_dim=32) | EXPERTS | rope()),
    ),
    "kolibri1-normed": Spec(
        architecture="kolibri1", saved=True,
        config=Kolibri1Config(
            **sizes(2, 2, 2, head_dim=64) | EXPERTS | rope(theta=1e6), norm_topk_prob=True,
            layer_types=["full_attention", "sliding_attention"],
        ),
    ),
}  # fmt: skip

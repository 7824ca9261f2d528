"""Jamba: Mamba in most layers, attention in the others, and experts in some."""

from reference_spec import Spec, sizes
from transformers import JambaConfig

MODELS = {
    "jamba": Spec(
        architecture="jamba", saved=True,
        config=JambaConfig(
            **sizes(3, 1, 4), attn_layer_period=3, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1,
            num_experts=4, num_experts_per_tok=2, mamba_d_state=16, mamba_dt_rank=32,
        ),
    ),
    "jamba-dense": Spec(
        architecture="jamba", saved=True,
        config=JambaConfig(
            **sizes(2, 2, 3) | {"tie_word_embeddings": True}, attn_layer_period=2, attn_layer_offset=0,
            expert_layer_period=2, expert_layer_offset=1, num_experts=1, num_experts_per_tok=1, mamba_d_conv=3,
        ),
    ),
}  # fmt: skip

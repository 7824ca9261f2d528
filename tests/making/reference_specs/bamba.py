"""Bamba: Mamba 2 in most layers, attention in the others."""

from reference_spec import Spec, sizes
from transformers import BambaConfig

MAMBA = {"mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2}
MODELS = {
    "bamba": Spec(
        architecture="bamba", saved=True,
        config=BambaConfig(
            **sizes(3, 1, 3) | MAMBA, attn_layer_indices=[1], mamba_n_heads=6, mamba_d_head=32, mamba_n_groups=1,
        ),
    ),
    "bamba-groups": Spec(
        architecture="bamba", saved=True,
        config=BambaConfig(
            **sizes(2, 2, 3) | MAMBA | {"tie_word_embeddings": True}, attn_layer_indices=[0], mamba_n_heads=12,
            mamba_d_head=16, mamba_n_groups=2,
        ),
    ),
}  # fmt: skip

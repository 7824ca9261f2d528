"""VaultGemma: Gemma 2 without the norms after the branches."""

from reference_spec import WINDOW, Spec, rope, sizes
from transformers import VaultGemmaConfig

GEMMA = {"tie_word_embeddings": True, "hidden_activation": "gelu_pytorch_tanh", "sliding_window": WINDOW}
MODELS = {
    "vaultgemma": Spec(
        architecture="vaultgemma", norm=0.0, saved=True,
        config=VaultGemmaConfig(**sizes(3, 1, 4, head_dim=32) | rope() | GEMMA, query_pre_attn_scalar=32),
    ),
    "vaultgemma-wide": Spec(
        architecture="vaultgemma", norm=0.0, saved=True,
        config=VaultGemmaConfig(
            **sizes(2, 2, 3, head_dim=64) | rope(theta=1e6) | GEMMA, query_pre_attn_scalar=48,
            attn_logit_softcapping=None, final_logit_softcapping=None,
        ),
    ),
}  # fmt: skip

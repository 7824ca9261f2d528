"""Models with latent attention that keep the matrix of all keys and values whole."""

import transformers
from plm_model import PLMConfig, PLMForCausalLM
from reference_spec import Spec, longrope, rope, sizes

LATENT = {"kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32}
PLM = {"hidden_act": "relu2", "q_lora_rank": None, "rms_norm_eps": 1e-6}
MODELS = {
    "plm": Spec(
        architecture="plm", model=PLMForCausalLM,
        config=PLMConfig(**sizes(3, 3) | LATENT | PLM | {"rope_theta": 1e5, "tie_word_embeddings": True}),
    ),
    "plm-narrow": Spec(
        architecture="plm", model=PLMForCausalLM,
        config=PLMConfig(**sizes(2, 2, 3) | LATENT | PLM | {"rope_theta": 1e4, "v_head_dim": 16, "kv_lora_rank": 64}),
    ),
    "minicpm3": Spec(
        architecture="minicpm3",
        config=transformers.MiniCPM3Config(
            **sizes(3, 3) | LATENT | {"q_lora_rank": 64} | rope(), scale_emb=12, scale_depth=1.4, dim_model_base=32,
        ),
    ),
    "minicpm3-long": Spec(
        architecture="minicpm3",
        config=transformers.MiniCPM3Config(
            **sizes(2, 2, 3) | LATENT | {"q_lora_rank": 32, "v_head_dim": 48, "attention_bias": True}
            | longrope(8, 64), scale_emb=8, scale_depth=2.0, dim_model_base=48,
        ),
    ),
}  # fmt: skip

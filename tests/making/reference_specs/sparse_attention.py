"""DeepSeek sparse attention: latent attention to positions that an indexer chooses, DeepSeek-V3.2 and GLM-5."""

from reference_spec import Spec, rope, sizes
from transformers import DeepseekV32Config, GlmMoeDsaConfig

MLA = {"kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 32, "q_lora_rank": 64}
EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 64, "n_shared_experts": 1}
INDEXER = {"index_n_heads": 8, "index_head_dim": 64, "index_topk": 16}  # positions: fewer than those of the text
PUBLISHED = {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1}
MODELS = {
    "deepseek32": Spec(
        architecture="deepseek32", saved=True, written=lambda config: config | PUBLISHED,
        config=DeepseekV32Config(
            **sizes(3, 3, 3) | MLA | EXPERTS | INDEXER | rope(), first_k_dense_replace=1, n_group=4, topk_group=2,
        ),
    ),
    "deepseek32-yarn": Spec(
        architecture="deepseek32", saved=True, written=lambda config: config | PUBLISHED,
        config=DeepseekV32Config(
            **sizes(2, 2, 2) | MLA | {"v_head_dim": 64, "q_lora_rank": 32} | EXPERTS
            | rope("yarn", factor=4.0, original_max_position_embeddings=64, mscale=1.0, mscale_all_dim=1.0),
            index_n_heads=9, index_head_dim=128, index_topk=11, first_k_dense_replace=1, n_group=1, topk_group=1,
        ),
    ),
    "glm-dsa": Spec(
        architecture="glm-dsa", saved=True,
        config=GlmMoeDsaConfig(**sizes(3, 3, 2) | MLA | EXPERTS | INDEXER | rope(theta=1e6), first_k_dense_replace=1),
    ),
    "glm-dsa-shared": Spec(
        architecture="glm-dsa", saved=True,
        config=GlmMoeDsaConfig(
            **sizes(2, 2, 5) | MLA | {"v_head_dim": 64, "kv_lora_rank": 64} | EXPERTS | rope(), index_n_heads=10,
            index_head_dim=64, index_topk=12, first_k_dense_replace=2,
            indexer_types=["full", "shared", "full", "shared", "shared"],
        ),
    ),
}  # fmt: skip

"""DeepSeek sparse attention: attention to positions that an indexer chooses: DeepSeek-V3.2, GLM-5, dots3 note."""

from typing import Any

from reference_spec import WINDOW, Spec, rope, sizes
from transformers import DeepseekV32Config, Dots3NoteForCausalLM, Dots3NoteTextConfig, GlmMoeDsaConfig

MLA = {"kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 32, "q_lora_rank": 64}
EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 64, "n_shared_experts": 1}
INDEXER = {"index_n_heads": 8, "index_head_dim": 64, "index_topk": 16}  # positions: fewer than those of the text
PUBLISHED = {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1}
LOCAL = {
    "swa_num_attention_heads": 5, "swa_num_key_value_heads": 5, "swa_q_lora_rank": 64, "swa_kv_lora_rank": 64,
    "swa_head_dim": 64, "swa_qk_nope_head_dim": 32, "swa_qk_rope_head_dim": 32, "swa_v_head_dim": 32,
    "sliding_window_size": WINDOW, "swa_rope_theta": 5e4,
}  # fmt: skip


def dots3(sliding: str, keys: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a dots3 note Spec. Layers with an "s" in `sliding` have a window. config.json has the
    keys of published checkpoints, which transformers changes."""
    kinds = ["sliding_attention" if letter == "s" else "full_attention" for letter in sliding]
    given = MLA | EXPERTS | INDEXER | LOCAL | {"moe_shared_expert_intermediate_size": 64, "layer_types": kinds} | keys

    def written(config: dict[str, Any]) -> dict[str, Any]:
        changed = ("rope_parameters", "per_layer_config", "mlp_layer_types", "sliding_window", "shared_experts")
        kept = {key: value for key, value in config.items() if not key.startswith(changed)}
        more = {"use_dsa": True, "apply_mla_qkv_lora_rescale": True, "model_type": "dots3_note"}
        return kept | given | PUBLISHED | more

    made = {"architecture": "dots3note", "saved": True, "model": Dots3NoteForCausalLM, "written": written}
    return made | {"config": Dots3NoteTextConfig(**given)}


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
    "dots3note": Spec(**dots3("fs", sizes(3, 3) | {"first_k_dense_replace": 0, "rope_theta": 8e7})),
    "dots3note-narrow": Spec(
        **dots3(
            "sfs",
            sizes(2, 2, 3) | {"kv_lora_rank": 64, "v_head_dim": 64, "index_n_heads": 9, "index_topk": 11}
            | {"q_lora_rank": 32, "swa_q_lora_rank": 32, "swa_kv_lora_rank": 32, "swa_v_head_dim": 64}
            | {"first_k_dense_replace": 1, "routed_scaling_factor": 2.5, "n_shared_experts": 2, "rope_theta": 1e4},
        )
    ),
}  # fmt: skip

"""Options of config.json that checkpoints of a family may have: `config_options.py` compares them with transformers.

Each entry names a model of `converted_cases.py` and what differs from it.
"""

from typing import Any

from converted_cases import LONG, WINDOW, YARN, layers, rope

Options = dict[str, Any]
BIASES, NO_BIASES = {"attention_bias": True}, {"attention_bias": False}
UNTIED, TIED = {"tie_word_embeddings": False}, {"tie_word_embeddings": True}
WINDOWED = {"use_sliding_window": True, "sliding_window": WINDOW}
DYNAMIC = rope("dynamic", factor=2.0)
MIXED = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}

OPTIONS: dict[str, list[Options]] = {
    "llama3": [
        BIASES, {"mlp_bias": True}, TIED, {"head_dim": 96}, {"rms_norm_eps": 1e-3}, DYNAMIC, YARN,
        {"hidden_act": "gelu"}, rope(partial_rotary_factor=0.5), {"num_attention_heads": 3, "num_key_value_heads": 1},
    ],
    "llama-linear": [LONG, {"pretraining_tp": 2}, {"intermediate_size": 200}, {"num_key_value_heads": 1}],
    "mistral": [{"sliding_window": WINDOW}, TIED, {"head_dim": 48}, {"hidden_act": "gelu"}, YARN],
    "mixtral": [{"sliding_window": WINDOW}, TIED, {"num_experts_per_tok": 1}, {"router_jitter_noise": 0.1}],
    "ministral3": [{"sliding_window": WINDOW}, TIED, {"num_key_value_heads": 4}],
    "smollm3": [
        WINDOWED, UNTIED, BIASES, {"no_rope_layer_interval": 3}, {"no_rope_layers": [1] * 6}, {"mlp_bias": True},
    ],
    "granite": [NO_BIASES, {"mlp_bias": False}, TIED, {"residual_multiplier": 1.0}, {"logits_scaling": 1.0}],
    "granitemoe": [BIASES, TIED, {"num_experts_per_tok": 1}],
    "granitehybrid": [
        {"position_embedding_type": "rope"}, BIASES, {"mamba_n_groups": 2}, {"mamba_conv_bias": False},
        {"mamba_proj_bias": True}, {"num_local_experts": 0}, {"time_step_limit": [0.0, 0.1]}, TIED,
    ],
    "qwen2": [WINDOWED | {"max_window_layers": 1}, WINDOWED | MIXED, TIED, YARN, {"num_key_value_heads": 8}],
    "qwen2moe": [
        {"norm_topk_prob": True}, {"decoder_sparse_step": 2}, {"mlp_only_layers": [1]}, {"qkv_bias": False},
        WINDOWED | {"max_window_layers": 3}, {"shared_expert_intermediate_size": 64}, {"num_experts_per_tok": 7},
    ],
    "qwen3": [NO_BIASES, WINDOWED | {"max_window_layers": 1}, WINDOWED | MIXED, TIED, YARN, {"head_dim": 64}],
    "qwen3moe": [
        {"norm_topk_prob": False}, {"decoder_sparse_step": 3}, {"mlp_only_layers": [0, 2]}, WINDOWED, BIASES, TIED,
    ],
    "qwen3next": [
        {"norm_topk_prob": False}, {"decoder_sparse_step": 2}, {"mlp_only_layers": [0]}, BIASES, TIED,
        {"linear_num_key_heads": 4}, {"layer_types": ["full_attention", "linear_attention", "linear_attention"]},
    ],
    "qwen35": [BIASES, TIED, {"linear_conv_kernel_dim": 2}, {"linear_value_head_dim": 64}],
    "gemma": [UNTIED, {"hidden_activation": "gelu"}, BIASES, {"num_key_value_heads": 1}],
    "gemma2": [
        {"attn_logit_softcapping": None}, {"final_logit_softcapping": None}, {"query_pre_attn_scalar": 100}, BIASES,
        {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
        {"use_bidirectional_attention": True},
    ],
    "gemma3": [
        {"final_logit_softcapping": 5.0}, {"attn_logit_softcapping": 5.0}, {"query_pre_attn_scalar": 32}, BIASES,
        {"layer_types": ["sliding_attention", "full_attention"] * 3 + ["full_attention"]},
    ],
    "gemma3n": [
        {"activation_sparsity_pattern": [0.0] * 6}, {"num_kv_shared_layers": 0}, {"final_logit_softcapping": None},
        {"altup_active_idx": 1}, {"altup_num_inputs": 2},
    ],
    "phi2": [
        {"qk_layernorm": True}, rope(partial_rotary_factor=1.0), {"hidden_act": "gelu"}, {"num_key_value_heads": 2},
        TIED,
    ],
    "phi3": [
        rope(partial_rotary_factor=0.75), {"sliding_window": WINDOW}, TIED, {"num_key_value_heads": 1},
        {"hidden_act": "gelu"},
    ],
    "phimoe": [{"sliding_window": WINDOW}, NO_BIASES, {"lm_head_bias": False}, {"num_local_experts": 3}, TIED],
    "gpt2": [
        {"activation_function": "gelu"}, {"activation_function": "relu"}, {"scale_attn_by_inverse_layer_idx": True},
        {"scale_attn_weights": False}, {"n_inner": 256}, UNTIED, {"layer_norm_epsilon": 1e-3},
    ],
    "gptneox": [
        {"use_parallel_residual": False}, NO_BIASES, rope(partial_rotary_factor=1.0), {"hidden_act": "gelu_fast"},
        {"hidden_act": "relu"}, TIED,
    ],
    "starcoder2": [
        {"use_bias": False}, {"sliding_window": WINDOW}, UNTIED, {"hidden_act": "gelu"}, {"norm_epsilon": 1e-3},
    ],
    "stablelm": [
        {"use_parallel_residual": True}, {"qk_layernorm": True}, {"use_qkv_bias": True}, TIED,
        rope(partial_rotary_factor=1.0), {"num_key_value_heads": 2},
    ],
    "nemotron": [
        BIASES, {"mlp_bias": True}, rope(partial_rotary_factor=1.0), {"hidden_act": "silu"}, TIED, {"head_dim": 64},
    ],
    "falcon": [
        {"alibi": True}, {"bias": True}, {"new_decoder_architecture": False, "multi_query": True},
        {"new_decoder_architecture": False, "multi_query": False, "num_kv_heads": None},
        {"new_decoder_architecture": False, "parallel_attn": False}, {"num_ln_in_parallel_attn": 1}, UNTIED,
        {"ffn_hidden_size": 256}, {"activation": "gelu_new"},
    ],
    "command-r": [{"use_qk_norm": False}, BIASES, UNTIED, {"logit_scale": 1.0}],
    "cohere2": [
        BIASES, UNTIED, {"layer_types": ["full_attention", "sliding_attention"] * 2}, {"sliding_window": None},
    ],
    "olmo2": [BIASES, TIED, {"num_key_value_heads": 2}],
    "olmo3": [BIASES, YARN, {"layer_types": ["full_attention"] * 4}],
    "olmoe": [{"norm_topk_prob": True}, {"clip_qkv": 0.5}, BIASES, TIED],
    "dots1": [{"n_group": 2}, {"norm_topk_prob": False}, {"first_k_dense_replace": 0}, BIASES, layers(3, 3), TIED],
    "glm4": [NO_BIASES, rope(partial_rotary_factor=1.0), TIED, {"head_dim": 32}],
    "glm4moe": [
        {"use_qk_norm": False}, NO_BIASES, {"n_group": 2}, {"n_shared_experts": 2}, {"n_shared_experts": 0},
        {"norm_topk_prob": False}, {"first_k_dense_replace": 0}, TIED,
    ],
    "deepseek3": [
        {"q_lora_rank": None}, {"n_group": 4, "topk_group": 2}, {"norm_topk_prob": False}, {"rope_interleave": False},
        {"first_k_dense_replace": 0}, BIASES, TIED, {"routed_scaling_factor": 1.0}, {"n_shared_experts": 2},
        rope("yarn", 1e4, factor=8.0, original_max_position_embeddings=64, mscale=1.0, mscale_all_dim=1.0),
    ],
    "exaone4": [TIED, {"sliding_window": None, "layer_types": ["full_attention"] * 4}, {"num_key_value_heads": 4}],
    "ernie4_5": [{"use_bias": True}, UNTIED, {"num_key_value_heads": 4}],
    "ernie4_5-moe": [
        {"moe_num_shared_experts": 0}, {"moe_layer_interval": 2}, {"moe_layer_start_index": 0}, {"use_bias": True},
        {"moe_layer_end_index": 1}, TIED,
    ],
    "hunyuan": [BIASES, UNTIED, {"num_key_value_heads": 2}],
    "seed_oss": [{"attention_out_bias": False}, NO_BIASES, {"mlp_bias": True}, TIED],
    "gpt-oss": [
        NO_BIASES, {"layer_types": ["full_attention"] * 3}, {"num_experts_per_tok": 4}, TIED, rope(theta=1e5),
        {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
    ],
    "mamba": [
        {"use_conv_bias": False}, {"use_bias": True}, {"time_step_rank": 4}, {"conv_kernel": 2}, {"expand": 1},
        UNTIED, {"hidden_act": "gelu"},
    ],
    "mamba2": [
        {"n_groups": 2}, {"use_bias": True}, {"use_conv_bias": False}, {"time_step_limit": [0.0, 0.2]}, TIED,
        {"time_step_limit": [0.0, float("inf")]}, {"norm_before_gate": False}, {"conv_kernel": 2},
    ],
    "lfm2": [{"conv_bias": True}, {"block_auto_adjust_ff_dim": False}, {"conv_L_cache": 2}, UNTIED],
    "falcon-h1": [
        {"mamba_rms_norm": True}, {"mamba_norm_before_gate": True, "mamba_rms_norm": True}, BIASES, TIED,
        {"mamba_n_groups": 2}, {"mlp_bias": True}, {"projectors_bias": True}, {"mamba_conv_bias": False},
        {"key_multiplier": 0.5, "embedding_multiplier": 2.0, "ssm_multipliers": [0.5, 2.0, 1.5, 0.7, 1.2]},
        {"time_step_limit": [0.0, 0.2]},
    ],
    "nemotron_h": [
        {"n_groups": 2}, {"use_conv_bias": False}, {"use_bias": True}, {"mlp_bias": True}, BIASES,
        {"layers_block_type": ["mamba", "attention", "mamba", "mlp"]}, {"norm_topk_prob": False}, {"n_group": 2},
    ],
    "bert": [{"hidden_act": "relu"}, {"hidden_act": "gelu_new"}, {"layer_norm_eps": 1e-5}, {"type_vocab_size": 1}],
    "modern-bert": [
        {"attention_bias": True}, {"mlp_bias": True}, {"norm_bias": True}, {"hidden_activation": "silu"},
        {"global_attn_every_n_layers": 3},
    ],
    "embedding-gemma": [{"query_pre_attn_scalar": 32}, BIASES],
}  # fmt: skip

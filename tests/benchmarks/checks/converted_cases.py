"""Tiny models of many families, with configurations unlike those of the reference models: `converted_by_llama_cpp.py`
saves them as checkpoints. The names of configuration classes in transformers are without their suffix "Config"."""

from dataclasses import dataclass, field
from typing import Any

N_VOCAB = 320
WINDOW = 20  # several of them in the texts
MAX = 512
TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


@dataclass(frozen=True)
class Case:
    """A model. `kind` says what is compared: "logits", "states" of an encoder's tokens, or "scores" of text pairs."""

    family: str
    config: str
    values: dict[str, Any]
    kind: str = "logits"
    vocabulary: str = "bpe"  # or "modern", "roberta", "sentencepiece", "wordpiece", or "none"
    written: dict[str, Any] = field(default_factory=dict)  # changes of config.json; None removes a key
    options: tuple[str, ...] = ()  # of the converter
    norm: float = 1.0  # the mean of the weights of norms


def sizes(heads: int, kv: int, layers: int = 3, **more: Any) -> dict[str, Any]:
    common = {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": layers, "vocab_size": N_VOCAB}
    counts = {"num_attention_heads": heads, "num_key_value_heads": kv, "max_position_embeddings": MAX}
    return common | counts | TOKENS | {"tie_word_embeddings": False} | more


def rope(kind: str = "default", theta: float = 10_000.0, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **more}}


def layers(count: int, period: int) -> dict[str, Any]:
    kinds = ["full_attention" if (i + 1) % period == 0 else "sliding_attention" for i in range(count)]
    return {"sliding_window": WINDOW, "layer_types": kinds}


TIED = {"tie_word_embeddings": True}
YARN = rope("yarn", 1e6, factor=4.0, original_max_position_embeddings=32)
LLAMA3 = rope("llama3", 5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
LONG = rope(
    "longrope", original_max_position_embeddings=32, factor=16.0, short_factor=[1.0 + 0.03 * i for i in range(16)],
    long_factor=[1.0 + 0.3 * i for i in range(16)],
)  # fmt: skip
EXPERTS = {"num_experts": 7, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
ROUTED = {
    "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 96, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.5,
}  # fmt: skip
LATENT = {"kv_lora_rank": 64, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64, "q_lora_rank": 96}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 32, "mamba_d_state": 32, "mamba_n_groups": 1, "mamba_expand": 2}
DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
}  # fmt: skip
BERT = {
    "vocab_size": N_VOCAB, "hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4,
    "intermediate_size": 224, "max_position_embeddings": MAX,
}  # fmt: skip
ROBERTA = BERT | {"max_position_embeddings": MAX + 2, "type_vocab_size": 1, "pad_token_id": 1, "bos_token_id": 0}
MODERN = BERT | {"local_attention": WINDOW, "global_attn_every_n_layers": 2, "num_hidden_layers": 5} | {
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2,
}  # fmt: skip
FALCON = {
    "vocab_size": N_VOCAB, "hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "num_kv_heads": 2,
    "new_decoder_architecture": True, "alibi": False, "bias": False, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GEMMA = {"head_dim": 64, "query_pre_attn_scalar": 64, **TIED}
FULL = {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}}
GEMMA3_ROPE = {"rope_parameters": FULL | {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}
GRANITE = {
    "embedding_multiplier": 6.0, "attention_multiplier": 0.125, "residual_multiplier": 0.5, "logits_scaling": 4.0
}  # fmt: skip


CASES = {
    # Llama and its relatives
    "llama-tied-biases": Case("llama", "Llama", sizes(8, 4, attention_bias=True) | TIED | rope(theta=5e5)),
    "llama-mlp-bias": Case("llama", "Llama", sizes(4, 1, head_dim=48, mlp_bias=True) | rope()),
    "llama3": Case("llama", "Llama", sizes(4, 2, head_dim=64) | LLAMA3),
    "llama-yarn": Case("llama", "Llama", sizes(4, 4) | YARN),
    "llama-linear": Case("llama", "Llama", sizes(2, 2) | rope("linear", factor=2.5)),
    "llama-spm": Case("llama", "Llama", sizes(8, 2) | rope(), vocabulary="sentencepiece"),
    "arcee": Case("arcee", "Arcee", sizes(4, 2, head_dim=32) | rope()),
    "mistral": Case("mistral", "Mistral", sizes(4, 2, head_dim=64, sliding_window=None) | rope(theta=1e6)),
    "mistral-window": Case("mistral", "Mistral", sizes(4, 1, sliding_window=WINDOW) | rope()),
    "mixtral": Case(
        "mixtral",
        "Mixtral",
        sizes(4, 4, num_local_experts=6, num_experts_per_tok=3, sliding_window=None) | rope(theta=1e6),
    ),
    "mixtral-window": Case(
        "mixtral",
        "Mixtral",
        sizes(4, 2, num_local_experts=4, num_experts_per_tok=1, sliding_window=WINDOW) | rope(),
    ),
    "ministral3": Case(
        "mistral3",
        "Ministral3",
        sizes(4, 2, head_dim=64)
        | rope(
            "yarn",
            1e6,
            factor=8.0,
            original_max_position_embeddings=32,
            beta_fast=16.0,
            beta_slow=2.0,
            mscale=1.0,
            mscale_all_dim=1.0,
            llama_4_scaling_beta=0.2,
        ),
    ),
    "smollm3": Case("smollm3", "SmolLM3", sizes(4, 2, 6) | TIED | rope(theta=5e6)),
    "smollm3-window": Case(
        "smollm3",
        "SmolLM3",
        sizes(4, 4, 4, use_sliding_window=True, no_rope_layer_interval=4) | layers(4, 2) | rope(theta=1e6),
    ),
    "granite": Case("granite", "Granite", sizes(4, 4, attention_bias=True, mlp_bias=True) | rope() | GRANITE),
    "granitemoe": Case(
        "granitemoe", "GraniteMoe", sizes(4, 4, num_local_experts=6, num_experts_per_tok=4) | rope() | GRANITE
    ),
    "granitehybrid": Case(
        "granitehybrid",
        "GraniteMoeHybrid",
        sizes(
            4,
            2,
            4,
            layer_types=["mamba", "attention", "mamba", "mamba"],
            num_local_experts=4,
            num_experts_per_tok=2,
            shared_intermediate_size=96,
            position_embedding_type="nope",
        )
        | rope()
        | MAMBA
        | GRANITE,
        written={"layer_types": ["mamba", "attention", "mamba", "mamba"]},
    ),
    # Qwen
    "qwen2": Case("qwen2", "Qwen2", sizes(8, 1) | rope(theta=1e6)),
    "qwen2-window": Case(
        "qwen2",
        "Qwen2",
        sizes(4, 2, 4, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=2) | TIED | rope(),
    ),
    "qwen2moe": Case(
        "qwen2moe",
        "Qwen2Moe",
        sizes(4, 2, decoder_sparse_step=1, shared_expert_intermediate_size=128, norm_topk_prob=False)
        | EXPERTS
        | rope(),
    ),
    "qwen3": Case("qwen3", "Qwen3", sizes(4, 4, head_dim=96, attention_bias=True) | rope(theta=5e6)),
    "qwen3-window": Case(
        "qwen3",
        "Qwen3",
        sizes(4, 2, 4, head_dim=32, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=2) | rope(),
    ),
    "qwen3-yarn": Case("qwen3", "Qwen3", sizes(8, 2, head_dim=32) | TIED | YARN),
    "qwen3moe": Case("qwen3moe", "Qwen3Moe", sizes(8, 4, head_dim=32, norm_topk_prob=True) | EXPERTS | rope(theta=1e6)),
    "qwen3moe-window": Case(
        "qwen3moe",
        "Qwen3Moe",
        sizes(4, 2, head_dim=32, norm_topk_prob=True, use_sliding_window=True, sliding_window=WINDOW)
        | EXPERTS
        | rope(),
    ),
    "qwen3next": Case(
        "qwen3next",
        "Qwen3Next",
        sizes(4, 2, head_dim=64, shared_expert_intermediate_size=64)
        | EXPERTS
        | DELTA
        | rope(theta=1e6, partial_rotary_factor=0.5),
        norm=0.0,
        options=("--no-mtp",),
    ),
    "qwen35": Case(
        "qwen35",
        "Qwen3_5Text",
        sizes(4, 2, head_dim=64) | DELTA | rope(theta=1e6, partial_rotary_factor=0.5, mrope_section=[6, 5, 5]),
        norm=0.0,
        options=("--no-mtp",),
    ),
    # Gemma
    "gemma": Case("gemma", "Gemma", sizes(4, 4, head_dim=32) | TIED | rope(), vocabulary="sentencepiece", norm=0.0),
    "gemma2": Case(
        "gemma2",
        "Gemma2",
        sizes(8, 4, 3)
        | GEMMA
        | layers(3, 2)
        | rope()
        | {"attn_logit_softcapping": 20.0, "final_logit_softcapping": 10.0},
        vocabulary="sentencepiece",
        norm=0.0,
    ),
    "gemma3": Case(
        "gemma3",
        "Gemma3Text",
        sizes(4, 2, 7) | GEMMA | layers(7, 6) | GEMMA3_ROPE,
        vocabulary="sentencepiece",
        norm=0.0,
    ),
    "gemma3n": Case(
        "gemma3n",
        "Gemma3nText",
        sizes(
            4,
            2,
            6,
            head_dim=32,
            intermediate_size=256,
            num_kv_shared_layers=2,
            vocab_size_per_layer_input=N_VOCAB,
            hidden_size_per_layer_input=32,
            altup_num_inputs=4,
            laurel_rank=32,
            activation_sparsity_pattern=[0.5, 0.0, 0.0, 0.0, 0.0, 0.0],
        )
        | layers(6, 3),
        vocabulary="sentencepiece",
        norm=0.5,
    ),
    # Phi
    "phi2": Case(
        "phi2", "Phi", sizes(4, 4, qk_layernorm=False, intermediate_size=512) | rope(partial_rotary_factor=0.5)
    ),
    "phi3": Case(
        "phi3",
        "Phi3",
        sizes(4, 4, sliding_window=None) | rope() | {"original_max_position_embeddings": MAX},
        vocabulary="sentencepiece",
    ),
    "phi3-window": Case(
        "phi3",
        "Phi3",
        sizes(4, 2, sliding_window=WINDOW) | rope() | {"original_max_position_embeddings": MAX},
        vocabulary="sentencepiece",
    ),
    "phi3-long": Case(
        "phi3", "Phi3", sizes(4, 2) | LONG | {"original_max_position_embeddings": 32}, vocabulary="sentencepiece"
    ),
    "phimoe": Case(
        "phimoe",
        "Phimoe",
        sizes(
            4,
            2,
            num_local_experts=6,
            num_experts_per_tok=2,
            attention_bias=True,
            lm_head_bias=True,
            sliding_window=None,
        )
        | rope(),
        vocabulary="sentencepiece",
        written={"architectures": ["PhiMoEForCausalLM"], "original_max_position_embeddings": MAX},
    ),
    "phimoe-window": Case(
        "phimoe",
        "Phimoe",
        sizes(4, 2, num_local_experts=4, attention_bias=True, lm_head_bias=True, sliding_window=WINDOW)
        | rope()
        | {"original_max_position_embeddings": MAX},
        vocabulary="sentencepiece",
        written={"architectures": ["PhiMoEForCausalLM"], "original_max_position_embeddings": MAX},
    ),
    # LayerNorm decoders
    "gpt2": Case(
        "gpt2",
        "GPT2",
        {"vocab_size": N_VOCAB, "n_positions": 256, "n_embd": 128, "n_layer": 3, "n_head": 4}
        | {"bos_token_id": 1, "eos_token_id": 2},
        written={"n_ctx": 256},
    ),
    "gptneox": Case(
        "gptneox",
        "GPTNeoX",
        sizes(4, 4, use_parallel_residual=True, hidden_act="gelu") | rope(partial_rotary_factor=0.25),
        written={"rotary_pct": 0.25},
    ),
    "starcoder2": Case(
        "starcoder2", "Starcoder2", sizes(4, 1, use_bias=True, sliding_window=None) | TIED | rope(theta=1e5)
    ),
    "starcoder2-window": Case("starcoder2", "Starcoder2", sizes(4, 2, use_bias=True, sliding_window=WINDOW) | rope()),
    "stablelm": Case("stablelm", "StableLm", sizes(4, 4, use_qkv_bias=False) | rope(partial_rotary_factor=0.5)),
    "nemotron": Case(
        "nemotron",
        "Nemotron",
        sizes(4, 2, mlp_bias=False) | rope(partial_rotary_factor=0.5),
        norm=0.0,
        vocabulary="none",
    ),
    "falcon": Case("falcon", "Falcon", FALCON),
    "command-r": Case("command-r", "Cohere", sizes(4, 2, logit_scale=0.25, use_qk_norm=True) | TIED | rope(theta=8e6)),
    "cohere2": Case(
        "cohere2",
        "Cohere2",
        sizes(4, 2, 4, logit_scale=0.5) | TIED | layers(4, 4) | rope(),
        written={"rotary_pct": 1.0},
    ),
    # others with experts or latent attention
    "olmo2": Case("olmo2", "Olmo2", sizes(4, 4) | rope(theta=5e5)),
    "olmo3": Case("olmo2", "Olmo3", sizes(4, 4, 4) | layers(4, 4) | rope(theta=5e5)),
    "olmoe": Case("olmoe", "Olmoe", sizes(4, 2, num_experts=6, num_experts_per_tok=2, norm_topk_prob=False) | rope()),
    "dots1": Case("dots1", "Dots1", sizes(4, 4, head_dim=32) | ROUTED | rope(theta=1e6)),
    "glm4": Case(
        "glm4",
        "Glm4",
        sizes(4, 2, head_dim=64, attention_bias=True) | rope(partial_rotary_factor=0.25),
        vocabulary="none",
    ),
    "glm4moe": Case(
        "glm4moe",
        "Glm4Moe",
        sizes(4, 2, head_dim=32, attention_bias=True, use_qk_norm=True, num_nextn_predict_layers=0)
        | ROUTED
        | rope(theta=1e6, partial_rotary_factor=0.5),
        vocabulary="none",
    ),
    "deepseek3": Case(
        "deepseek2",
        "DeepseekV3",
        sizes(4, 4, num_nextn_predict_layers=0) | ROUTED | LATENT | rope(theta=1e4),
        written={"scoring_func": "sigmoid", "topk_method": "noaux_tc"},
    ),
    "exaone4": Case("exaone4", "Exaone4", sizes(4, 2, 4) | layers(4, 4) | rope(theta=1e6)),
    "ernie4_5": Case(
        "ernie4_5",
        "Ernie4_5",
        sizes(4, 2, head_dim=64, use_bias=False) | TIED | rope(theta=5e5),
        vocabulary="sentencepiece",
    ),
    "ernie4_5-moe": Case(
        "ernie4_5-moe",
        "Ernie4_5_Moe",
        sizes(4, 4, moe_num_experts=6, moe_k=2, moe_intermediate_size=64, moe_num_shared_experts=1, use_bias=False)
        | rope(),
        vocabulary="sentencepiece",
    ),
    "hunyuan": Case("hunyuan-dense", "HunYuanDenseV1", sizes(4, 4, head_dim=64) | TIED | rope()),
    "seed_oss": Case(
        "seed_oss", "SeedOss", sizes(4, 2, head_dim=64, attention_bias=True, attention_out_bias=True) | rope(theta=1e6)
    ),
    "gpt-oss": Case(
        "gpt-oss",
        "GptOss",
        sizes(4, 2, head_dim=64, num_local_experts=4, num_experts_per_tok=2)
        | layers(3, 2)
        | rope(
            "yarn",
            150_000.0,
            factor=8.0,
            original_max_position_embeddings=64,
            beta_fast=32.0,
            beta_slow=1.0,
            truncate=False,
        ),
    ),
    # recurrent states
    "mamba": Case(
        "mamba", "Mamba", {"vocab_size": N_VOCAB, "hidden_size": 128, "state_size": 32, "num_hidden_layers": 3} | TOKENS
    ),
    "mamba2": Case(
        "mamba2",
        "Mamba2",
        {
            "vocab_size": N_VOCAB,
            "hidden_size": 128,
            "num_heads": 8,
            "head_dim": 32,
            "state_size": 32,
            "n_groups": 1,
            "num_hidden_layers": 3,
        }
        | TOKENS,
    ),
    "lfm2": Case(
        "lfm2",
        "Lfm2",
        sizes(4, 2, 4, block_multiple_of=32, conv_L_cache=4)
        | TIED
        | rope(theta=1e6)
        | {"layer_types": ["conv", "full_attention", "conv", "full_attention"]},
    ),
    "falcon-h1": Case(
        "falcon-h1",
        "FalconH1",
        sizes(4, 2, head_dim=32, mamba_d_ssm=256, mamba_norm_before_gate=False) | MAMBA | rope(theta=1e9),
    ),
    "nemotron_h": Case(
        "nemotron_h",
        "NemotronH",
        sizes(
            4,
            2,
            4,
            head_dim=32,
            mamba_num_heads=8,
            mamba_head_dim=32,
            ssm_state_size=32,
            n_groups=1,
            time_step_min=1e-30,
            layers_block_type=["mamba", "attention", "mamba", "moe"],
            n_routed_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=64,
            moe_shared_expert_intermediate_size=64,
        ),
    ),
    # encoders
    "bert": Case("bert", "Bert", BERT | {"type_vocab_size": 2}, "states", "wordpiece"),
    "roberta": Case("bert", "Roberta", ROBERTA, "states", "roberta"),
    "modern-bert": Case("modern-bert", "ModernBert", MODERN, "states", "modern"),
    "modern-bert-silu": Case(
        "modern-bert",
        "ModernBert",
        MODERN | {"global_attn_every_n_layers": 3, "hidden_activation": "silu"},
        "states",
        "modern",
    ),
    "eurobert": Case("eurobert", "EuroBert", sizes(4, 4, classifier_pooling="mean") | rope(), "states"),
    "embedding-gemma": Case(
        "gemma-embedding",
        "Gemma3Text",
        sizes(4, 2, 7, use_bidirectional_attention=True) | GEMMA | layers(7, 6) | GEMMA3_ROPE,
        "states",
        "sentencepiece",
        norm=0.0,
        written={"sliding_window": WINDOW},
    ),
    # rerankers
    "bert-scores": Case("bert", "Bert", BERT | {"type_vocab_size": 2, "num_labels": 1}, "scores", "wordpiece"),
    "roberta-scores": Case("bert", "Roberta", ROBERTA | {"num_labels": 1}, "scores", "roberta"),
    "modern-bert-scores": Case(
        "modern-bert", "ModernBert", MODERN | {"num_labels": 1, "classifier_pooling": "mean"}, "scores", "modern"
    ),
    "modern-bert-cls-scores": Case(
        "modern-bert", "ModernBert", MODERN | {"num_labels": 1, "classifier_pooling": "cls"}, "scores", "modern"
    ),
}

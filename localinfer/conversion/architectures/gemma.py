"""Gemma 1 to 4, assistants of Gemma 4, Gemma 3n, and EmbeddingGemma."""

from dataclasses import replace

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures.common import (
    EXACT_GELU,
    GATED_FFN,
    GELU,
    HEAD_NORMS,
    POST_NORMS,
    PRE_NORMS,
    SEPARATE_QKV,
    biases,
)
from localinfer.conversion.architectures.llama import LLAMA
from localinfer.conversion.metadata import architecture_metadata, layer_overrides
from localinfer.conversion.tensor_formats import reorder

GEMMA = Architecture(
    name="gemma",
    layer_tensors=LLAMA.layer_tensors,
    optional_layer_tensors=biases(*SEPARATE_QKV),
    norm_offset=1.0,
    activations=GELU + EXACT_GELU,  # the first config.json files specify exact GELU by mistake
    defaults={"tie_word_embeddings": True, "hidden_act": "gelu_pytorch_tanh"},
)
GEMMA2 = Architecture(
    name="gemma2",
    layer_tensors=(*PRE_NORMS, *POST_NORMS, *SEPARATE_QKV, *GATED_FFN),
    optional_layer_tensors=biases(*SEPARATE_QKV),
    norm_offset=1.0,
    activations=GELU,
    window_period=2,
    float_keys={
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
    },
    has_attention_scale=True,
    metadata=architecture_metadata.no_softcapping,
    defaults=GEMMA.defaults,
)
GEMMA3 = Architecture(
    name="gemma3",
    layer_tensors=(*PRE_NORMS, *POST_NORMS, *SEPARATE_QKV, *GATED_FFN, *HEAD_NORMS),
    optional_layer_tensors=biases(*SEPARATE_QKV),
    norm_offset=1.0,
    activations=GELU,
    window_period=6,
    has_window_rope=True,
    float_keys={"final_logit_softcapping": "final_logit_softcapping"},
    has_attention_scale=True,
    defaults={  # the larger models' config.json files list only differences
        **GEMMA.defaults,
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
        "sliding_window": 4096,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "query_pre_attn_scalar": 256,
    },
)
GEMMA_EMBEDDING = replace(
    GEMMA3,
    name="gemma-embedding",
    is_encoder=True,
    model_tensors=("output_norm",),
    required_values={"use_bidirectional_attention": True},
)
GEMMA4 = Architecture(
    name="gemma4",
    layer_tensors=(*PRE_NORMS, *POST_NORMS, *SEPARATE_QKV, *GATED_FFN, *HEAD_NORMS),
    optional_layer_tensors=(
        "layer_output_scale", "inp_gate", "proj", "post_norm", "ffn_gate_inp", "ffn_gate_inp.scale",
        "ffn_gate_up_exps", "ffn_down_exps", "ffn_down_exps.scale", "pre_ffw_norm_2", "post_ffw_norm_1",
        "post_ffw_norm_2",
    ),
    optional_model_tensors=("per_layer_token_embd", "per_layer_model_proj", "per_layer_proj_norm"),
    activations=GELU,
    window_period=6,
    writes_window_flags=True,
    has_window_rope=True,
    float_keys={"final_logit_softcapping": "final_logit_softcapping"},
    character_bpe_model="gemma4",
    shapes={"ffn_gate_up_exps": ("n_expert", "n_gate_and_up_expert", "n_embd")},
    tensor_names={"router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale"},
    key_aliases={"num_experts_per_tok": "top_k_experts"},
    metadata=layer_overrides.gemma4_metadata,
    layer_overrides=layer_overrides.gemma4_layers,
    required_values={"attention_bias": False, "use_bidirectional_attention": "vision"},  # for images only
    defaults={"tie_word_embeddings": True, "hidden_act": "gelu_pytorch_tanh"},
)  # fmt: skip
GEMMA4_ASSISTANT = replace(
    GEMMA4,
    name="gemma4-assistant",
    name_map_architecture="gemma4",
    layer_tensors=(
        *PRE_NORMS, *POST_NORMS, "attn_q", "attn_q_norm", "attn_output", *GATED_FFN, "layer_output_scale",
    ),
    optional_layer_tensors=(),
    model_tensors=("nextn.pre_projection", "nextn.post_projection"),
    optional_model_tensors=(),
    shapes={"nextn.pre_projection": ("n_embd", "n_pair"), "nextn.post_projection": ("n_target", "n_embd")},
    tensor_names={f"{name}.weight": f"nextn.{name}.weight" for name in ("pre_projection", "post_projection")},
    ignored_tensors=r"masked_embedding\..*",  # which select the rows of the output layer that are computed
    read_hparams=layer_overrides.assistant_hparams,
    metadata=layer_overrides.assistant_metadata,
    required_values={**GEMMA4.required_values, "tie_word_embeddings": True},
)  # fmt: skip
GEMMA3N = Architecture(
    name="gemma3n",
    layer_tensors=(
        *PRE_NORMS, *POST_NORMS, *SEPARATE_QKV, *GATED_FFN, *HEAD_NORMS, "inp_gate", "proj", "post_norm",
        "altup_router",
        "altup_router_norm", "altup_predict_coef", "altup_correct_coef", "altup_correct_scale", "laurel_l", "laurel_r",
        "laurel_post_norm",
    ),
    model_tensors=(
        "per_layer_token_embd", "per_layer_model_proj", "per_layer_proj_norm", "altup_proj", "altup_unembd_proj",
    ),
    shapes={"per_layer_token_embd": ("n_vocab_input", "n_embd_all_layers")},
    final_shapes={"per_layer_token_embd": ("n_vocab", "n_embd_all_layers")},
    reorder={"per_layer_token_embd": reorder.pad_vocabulary},
    activations=GELU,
    window_period=5,
    writes_window_flags=True,
    has_window_rope=True,
    float_keys={"final_logit_softcapping": "final_logit_softcapping"},
    read_hparams=architecture_metadata.gemma3n_hparams,
    metadata=architecture_metadata.gemma3n_metadata,
    layer_overrides=layer_overrides.gemma3n_layers,
    required_values={"attention_bias": False, "altup_active_idx": 0, "altup_correct_scale": True},
    defaults={"tie_word_embeddings": True, "hidden_act": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6},
)  # fmt: skip
BY_CLASS = {
    "GemmaForCausalLM": GEMMA,
    "Gemma2ForCausalLM": GEMMA2,
    "Gemma3ForCausalLM": GEMMA3,
    "Gemma3ForConditionalGeneration": GEMMA3,
    "Gemma3TextModel": GEMMA_EMBEDDING,
    "Gemma4ForCausalLM": GEMMA4,
    "Gemma4ForConditionalGeneration": GEMMA4,
    "Gemma4UnifiedForConditionalGeneration": GEMMA4,
    "Gemma4AssistantForCausalLM": GEMMA4_ASSISTANT,
    "Gemma4UnifiedAssistantForCausalLM": GEMMA4_ASSISTANT,
    "Gemma3nForCausalLM": GEMMA3N,
    "Gemma3nForConditionalGeneration": GEMMA3N,
}

"""Diffusion language models, which attend in both directions and predict masked tokens."""

from dataclasses import replace

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures.common import EXPERTS, HEAD_NORMS, PRE_NORMS, SEPARATE_QKV
from localinfer.conversion.architectures.llama import LLAMA
from localinfer.conversion.architectures.qwen import QWEN2, QWEN3MOE
from localinfer.conversion.metadata import expert_metadata
from localinfer.gguf.source import Field

NO_SHIFT = {"diffusion.shift_logits": Field.flag(False)}  # the logits at a position are those of its own token
DREAM = replace(QWEN2, name="dream", is_diffusion=True)
LLADA = replace(
    LLAMA,
    name="llada",
    is_diffusion=True,
    own_fields=NO_SHIFT | {"tokenizer.ggml.add_bos_token": Field.flag(True)},
    key_aliases={
        "hidden_size": "d_model", "intermediate_size": "mlp_hidden_size", "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads", "num_key_value_heads": "n_kv_heads", "hidden_act": "activation_type",
        "max_position_embeddings": "max_sequence_length", "tie_word_embeddings": "weight_tying",
    },
    required_values={
        "block_type": "llama", "layer_norm_type": "rms", "rope": True, "alibi": False, "attention_layer_norm": False,
        "input_emb_norm": False, "scale_logits": False,
    },
    defaults={"max_sequence_length": 4096},
)  # fmt: skip
LLADA_MOE = Architecture(
    name="llada-moe",
    is_diffusion=True,
    own_fields=NO_SHIFT | {"tokenizer.ggml.mask_token_id": Field.uint32(156_895)},  # config.json does not state it
    layer_tensors=(*PRE_NORMS, *SEPARATE_QKV, *HEAD_NORMS, *EXPERTS),
    key_aliases={"moe_intermediate_size": "expert_intermediate_size"},
    metadata=expert_metadata.experts,
    required_values={
        "qk_layernorm": True, "moe_router_score_function": "softmax", "moe_router_enable_expert_bias": False,
        "norm_topk_prob": False, "routed_scaling_factor": 1,
    },
)  # fmt: skip
RND1 = replace(QWEN3MOE, name="rnd1", is_diffusion=True)
BY_CLASS = {
    "DreamModel": DREAM,
    "LLaDAModelLM": LLADA,
    "LLaDAMoEModel": LLADA_MOE,
    "LLaDAMoEModelLM": LLADA_MOE,
    "RND1": RND1,
    "RND1LM": RND1,
}

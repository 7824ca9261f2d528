"""Qwen, from the second: dense, with experts, and with the delta rule in most of their layers."""

from dataclasses import replace

from localinfer.checkpoint import own_keys
from localinfer.checkpoint.architecture import Architecture
from localinfer.checkpoint.architectures.common import (
    APART,
    BEFORE,
    EXPERTS,
    FUSED_EXPERTS,
    FUSED_SIZES,
    GATED,
    HALVES,
    HEAD_NORMS,
    SHARED,
    biases,
)
from localinfer.checkpoint.architectures.llama import LLAMA
from localinfer.checkpoint.stored import reorder

QWEN2 = Architecture(name="qwen2", block=(*LLAMA.block, *biases("attn_q", "attn_k", "attn_v")))
QWEN3 = Architecture(name="qwen3", block=(*LLAMA.block, *HEAD_NORMS))
QWEN2MOE = Architecture(
    name="qwen2moe",
    block=(*BEFORE, *APART, *biases("attn_q", "attn_k", "attn_v"), *EXPERTS, "ffn_gate_inp_shexp", *SHARED),
    counts={"shared_expert_intermediate_size": "expert_shared_feed_forward_length"},
    own_keys=own_keys.experts,
    fixed={"norm_topk_prob": False, "decoder_sparse_step": 1, "mlp_only_layers": [], "qkv_bias": True},
    defaults={"norm_topk_prob": False},
)
QWEN3MOE = Architecture(
    name="qwen3moe",
    block=(*BEFORE, *APART, *HEAD_NORMS, *EXPERTS),
    own_keys=own_keys.experts,
    fixed={"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
)
QWEN35 = Architecture(
    name="qwen35",
    block=("attn_norm", "post_attention_norm", *GATED),
    kinds={
        "linear_attention": (
            "attn_qkv", "attn_gate", "ssm_alpha", "ssm_beta", "ssm_conv1d", "ssm_dt.bias", "ssm_a", "ssm_norm",
            "ssm_out",
        ),
        "full_attention": (*APART, *HEAD_NORMS),
    },
    sizes={"attn_qkv": ("n_convolved", "n_embd"), "attn_q": ("n_2q", "n_embd")},
    reorder={
        "attn_qkv": reorder.behind_keys_in_turns,
        "ssm_conv1d": reorder.behind_keys_in_turns,
        "attn_gate": reorder.values_in_turns,
        **dict.fromkeys(("ssm_alpha", "ssm_beta", "ssm_dt.bias", "ssm_a"), reorder.numbers_in_turns),
        "ssm_out": reorder.columns_in_turns,
    },
    norm_offset=1.0,
    part_turns=True,
    predicts_further=True,
    own_numbers=own_keys.numbers_of_delta_net,
    own_keys=own_keys.delta_net,
    fixed={"attention_bias": False, "attn_output_gate": True},
)
QWEN35MOE = replace(
    QWEN35,
    name="qwen35moe",
    block=("attn_norm", "post_attention_norm", *EXPERTS, "ffn_gate_inp_shexp", *SHARED),
    sizes={**QWEN35.sizes, **FUSED_SIZES},
    parts=FUSED_EXPERTS,
    reorder={**QWEN35.reorder, **HALVES},
    counts=QWEN2MOE.counts,
    own_keys=own_keys.delta_net_with_experts,
)
QWEN3NEXT = replace(
    QWEN35MOE,
    name="qwen3next",
    kinds={
        **QWEN35.kinds,
        "linear_attention": (
            "attn_qkv", "attn_gate", "ssm_ba", "ssm_conv1d", "ssm_dt.bias", "ssm_a", "ssm_norm", "ssm_out"
        ),
    },
    parts={**QWEN35MOE.parts, "attn_qkv": "ssm_in", "attn_gate": "ssm_in"},
    reorder={
        "attn_qkv": reorder.keys_and_values,
        "attn_gate": reorder.gates_of_values,
        **HALVES,
    },
    own_keys=own_keys.next_delta_net,
    fixed={**QWEN35.fixed, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
)
BY_CLASS = {
    "Qwen2ForCausalLM": QWEN2,
    "Qwen3ForCausalLM": QWEN3,
    "Qwen2MoeForCausalLM": QWEN2MOE,
    "Qwen3MoeForCausalLM": QWEN3MOE,
    "Qwen3_5ForCausalLM": QWEN35,
    "Qwen3_5ForConditionalGeneration": QWEN35,
    "Qwen3_5MoeForCausalLM": QWEN35MOE,
    "Qwen3_5MoeForConditionalGeneration": QWEN35MOE,
    "Qwen3NextForCausalLM": QWEN3NEXT,
}

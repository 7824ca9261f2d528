"""Qwen: dense, mixture of experts, and hybrids with gated delta net layers."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures.common import (
    EXPERTS,
    FUSED_EXPERT_SHAPES,
    FUSED_EXPERTS,
    FUSED_QKV,
    GATED_FFN,
    HEAD_NORMS,
    PRE_NORMS,
    SEPARATE_QKV,
    SHARED_EXPERTS,
    SPLIT_EXPERTS,
    biases,
)
from localinfer.conversion.architectures.llama import LLAMA
from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.metadata import architecture_metadata, expert_metadata, recurrent_metadata, vision_metadata
from localinfer.conversion.tensor_formats import reorder

QWEN = Architecture(
    name="qwen",
    layer_tensors=(*PRE_NORMS, *FUSED_QKV, "attn_qkv.bias", *GATED_FFN),
    read_hparams=architecture_metadata.qwen_hparams,
    metadata=architecture_metadata.qwen_metadata,
    required_values={"no_bias": True},
)
QWEN2 = Architecture(
    name="qwen2",
    layer_tensors=(*LLAMA.layer_tensors, *biases("attn_q", "attn_k", "attn_v")),
    may_have_window=True,
    defaults={"use_sliding_window": False},
)
QWEN3 = Architecture(
    name="qwen3",
    layer_tensors=(*LLAMA.layer_tensors, *HEAD_NORMS),
    optional_layer_tensors=biases(*SEPARATE_QKV),
    may_have_window=True,
    defaults=QWEN2.defaults,
)
QWEN3_RERANKER = replace(
    QWEN3,
    model_tensors=("cls.output",),
    tensor_names={"score.weight": "cls.output.weight"},
    shapes={"cls.output": ("one", "n_embd")},
    final_shapes={"cls.output": ("n_answers", "n_embd")},
    reorder={"cls.output": reorder.append_zero_row},
    read_hparams=architecture_metadata.qwen3_reranker_hparams,
)
QWEN3_LIST_RERANKER = replace(  # jina-reranker-v3, whose projector `rerankers` converts
    QWEN3, ignored_tensors=r"projector\..*", read_hparams=architecture_metadata.without_output_layer
)
QWEN2MOE = Architecture(
    name="qwen2moe",
    layer_tensors=(
        *PRE_NORMS,
        *SEPARATE_QKV,
        *biases("attn_q", "attn_k", "attn_v"),
        *EXPERTS,
        "ffn_gate_inp_shexp",
        *SHARED_EXPERTS,
    ),
    int_keys={"shared_expert_intermediate_size": "expert_shared_feed_forward_length"},
    metadata=partial(expert_metadata.experts, usually_normed=False),
    may_have_window=True,
    defaults=QWEN2.defaults,
    required_values={"qkv_bias": True},
)
QWEN3MOE = Architecture(
    name="qwen3moe",
    layer_tensors=(*PRE_NORMS, *SEPARATE_QKV, *HEAD_NORMS, *EXPERTS),
    optional_layer_tensors=biases(*SEPARATE_QKV),
    metadata=partial(expert_metadata.experts, usually_normed=True),
    may_have_window=True,
    defaults=QWEN2.defaults,
)
OF_EXPERTS = {*EXPERTS, "ffn_gate_inp_shexp", *SHARED_EXPERTS}
QWEN2VL = replace(QWEN2, name="qwen2vl", metadata=vision_metadata.mrope)
QWEN3VL = replace(QWEN3, name="qwen3vl", metadata=vision_metadata.deepstack)
QWEN3VLMOE = replace(
    QWEN3MOE,
    name="qwen3vlmoe",
    fused_sources=FUSED_EXPERTS,
    reorder={
        "ffn_gate_exps": reorder.first_columns,
        "ffn_up_exps": reorder.last_columns,
        "ffn_down_exps": reorder.transpose,
    },
    tensor_names={"mlp.experts.gate_up_proj": "ffn_gate_up_exps.weight"},
    metadata=vision_metadata.deepstack_experts,
)
QWEN35 = Architecture(
    name="qwen35",
    layer_tensors=("attn_norm", "post_attention_norm", *GATED_FFN),
    layer_type_tensors={
        "linear_attention": (
            "attn_qkv",
            "attn_gate",
            "ssm_alpha",
            "ssm_beta",
            "ssm_conv1d",
            "ssm_dt.bias",
            "ssm_a",
            "ssm_norm",
            "ssm_out",
        ),
        "full_attention": (*SEPARATE_QKV, *HEAD_NORMS),
    },
    shapes={"attn_qkv": ("n_convolved", "n_embd"), "attn_q": ("n_2q", "n_embd")},
    reorder={
        "attn_qkv": reorder.interleave_values_after_keys,
        "ssm_conv1d": reorder.interleave_values_after_keys,
        "attn_gate": reorder.interleave_values,
        **dict.fromkeys(("ssm_alpha", "ssm_beta", "ssm_dt.bias", "ssm_a"), reorder.interleave_scalars),
        "ssm_out": reorder.interleave_columns,
    },
    norm_offset=1.0,
    has_partial_rope=True,
    has_mtp=True,
    read_hparams=recurrent_metadata.delta_net_hparams,
    metadata=recurrent_metadata.delta_net,
    required_values={"attention_bias": False, "attn_output_gate": True},
)
QWEN35MOE = replace(
    QWEN35,
    name="qwen35moe",
    layer_tensors=("attn_norm", "post_attention_norm", *EXPERTS, "ffn_gate_inp_shexp", *SHARED_EXPERTS),
    shapes={**QWEN35.shapes, **FUSED_EXPERT_SHAPES},
    fused_sources=FUSED_EXPERTS,
    reorder={**QWEN35.reorder, **SPLIT_EXPERTS},
    int_keys=QWEN2MOE.int_keys,
    metadata=recurrent_metadata.delta_net_moe,
)
QWEN3NEXT = replace(
    QWEN35MOE,
    name="qwen3next",
    layer_type_tensors={
        **QWEN35.layer_type_tensors,
        "linear_attention": (
            "attn_qkv",
            "attn_gate",
            "ssm_ba",
            "ssm_conv1d",
            "ssm_dt.bias",
            "ssm_a",
            "ssm_norm",
            "ssm_out",
        ),
    },
    fused_sources={**QWEN35MOE.fused_sources, "attn_qkv": "ssm_in", "attn_gate": "ssm_in"},
    reorder={
        "attn_qkv": reorder.recurrent_qkv,
        "attn_gate": reorder.recurrent_gates,
        **SPLIT_EXPERTS,
    },
    metadata=recurrent_metadata.qwen3next,
    required_values={**QWEN35.required_values, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
)


def with_dense_layers(architecture: Architecture) -> Callable[[JsonObject], Architecture]:
    """Return a function that returns the architecture, some of whose layers have no experts if config.json says so."""
    mixed = replace(
        architecture,
        layer_tensors=tuple(kind for kind in architecture.layer_tensors if kind not in OF_EXPERTS),
        moe_tensors=tuple(kind for kind in architecture.layer_tensors if kind in OF_EXPERTS),
        dense_tensors=GATED_FFN,
        tensor_names={f"mlp.{kind.removeprefix('ffn_')}_proj": kind for kind in GATED_FFN},
        read_hparams=expert_metadata.dense_layers_hparams,
        defaults={**architecture.defaults, "first_k_dense_replace": 0},
    )
    return lambda config: mixed if expert_metadata.has_dense_layers(config) else architecture


BY_CLASS: Mapping[str, Architecture | Callable[[JsonObject], Architecture]] = {
    "QWenLMHeadModel": QWEN,
    "Qwen2ForCausalLM": QWEN2,
    "DotsOCRForCausalLM": QWEN2,
    "Qwen3ForCausalLM": QWEN3,
    "Qwen3ForSequenceClassification": QWEN3_RERANKER,
    "JinaForRanking": QWEN3_LIST_RERANKER,
    "Qwen2MoeForCausalLM": with_dense_layers(QWEN2MOE),
    "Qwen3MoeForCausalLM": with_dense_layers(QWEN3MOE),
    "Qwen2VLForConditionalGeneration": QWEN2VL,
    "Qwen2_5_VLForConditionalGeneration": QWEN2VL,
    "Qwen2_5OmniModel": QWEN2VL,
    "Qwen2_5OmniForConditionalGeneration": QWEN2VL,
    "Qwen3VLForConditionalGeneration": QWEN3VL,
    "Qwen3VLMoeForConditionalGeneration": QWEN3VLMOE,
    "Qwen3_5ForCausalLM": QWEN35,
    "Qwen3_5ForConditionalGeneration": QWEN35,
    "Qwen3_5MoeForCausalLM": QWEN35MOE,
    "Qwen3_5MoeForConditionalGeneration": QWEN35MOE,
    "Qwen3NextForCausalLM": QWEN3NEXT,
}

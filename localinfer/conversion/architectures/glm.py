"""GLM-4, dense and with experts, also the text models of GLM-4V. (GLM-4.7 Flash is in deepseek.py.)"""

from dataclasses import replace

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures.common import (
    GATED_FFN,
    HEAD_NORMS,
    POST_NORMS,
    PRE_NORMS,
    SEPARATE_QKV,
    UNGATED_FFN,
    biases,
)
from localinfer.conversion.architectures.experts import DOTS1
from localinfer.conversion.metadata import expert_metadata, vision_metadata
from localinfer.conversion.tensor_formats import reorder

CHATGLM = Architecture(
    name="chatglm",
    layer_tensors=(*PRE_NORMS, *SEPARATE_QKV, *UNGATED_FFN),
    optional_layer_tensors=biases("attn_q", "attn_k", "attn_v"),
    shapes={"ffn_up": ("n_gate_and_up", "n_embd")},
    has_partial_rope=True,
    defaults={"partial_rotary_factor": 0.5},
)
GLM4 = Architecture(
    name="glm4",
    layer_tensors=(*PRE_NORMS, *POST_NORMS, *SEPARATE_QKV, *UNGATED_FFN),
    optional_layer_tensors=biases("attn_q", "attn_k", "attn_v"),
    shapes={"ffn_up": ("n_gate_and_up", "n_embd")},
    has_partial_rope=True,
    defaults={"partial_rotary_factor": 0.5},
)
GLM4V = replace(
    GLM4,
    metadata=vision_metadata.mrope,
    reorder={
        "attn_q": reorder.halve_query_pairs,
        "attn_q.bias": reorder.halve_query_pairs,
        "attn_k": reorder.halve_key_pairs,
        "attn_k.bias": reorder.halve_key_pairs,
    },
)
GLM_OCR = replace(GLM4V, has_mtp=True)
GLM4MOE = Architecture(
    name="glm4moe",
    layer_tensors=("attn_norm", "post_attention_norm", *SEPARATE_QKV),
    optional_layer_tensors=(*HEAD_NORMS, *biases("attn_q", "attn_k", "attn_v")),
    moe_tensors=DOTS1.moe_tensors,
    dense_tensors=GATED_FFN,
    tensor_names=DOTS1.tensor_names,
    has_partial_rope=True,
    has_mtp=True,
    float_keys=DOTS1.float_keys,
    bool_keys=DOTS1.bool_keys,
    int_keys=DOTS1.int_keys,
    metadata=expert_metadata.glm_experts,
    required_values=DOTS1.required_values,
    defaults={**DOTS1.defaults, "partial_rotary_factor": 0.5},
)
GLM4VMOE = replace(GLM4MOE, metadata=vision_metadata.sigmoid_experts)
BY_CLASS = {
    "GlmForCausalLM": CHATGLM,
    "Glm4ForCausalLM": GLM4,
    "Glm4vForConditionalGeneration": GLM4V,
    "GlmOcrForConditionalGeneration": GLM_OCR,
    "Glm4MoeForCausalLM": GLM4MOE,
    "Glm4vMoeForConditionalGeneration": GLM4VMOE,
}

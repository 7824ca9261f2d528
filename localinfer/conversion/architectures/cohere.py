"""Command R: one norm before both branches, none after."""

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures.common import GATED_FFN, HEAD_NORMS, SEPARATE_QKV, biases
from localinfer.conversion.metadata import attention_metadata

COMMAND_R = Architecture(
    name="command-r",
    layer_tensors=("attn_norm", *SEPARATE_QKV, *GATED_FFN),
    optional_layer_tensors=(*HEAD_NORMS, *biases(*SEPARATE_QKV)),
    shapes={"attn_q_norm": ("n_head", "head_dim"), "attn_k_norm": ("n_head_kv", "head_dim")},
    norm="layer",
    key_aliases={"max_position_embeddings": "model_max_length"},
    float_keys={"logit_scale": "logit_scale"},
    metadata=attention_metadata.rope_without_scaling,
    defaults={"tie_word_embeddings": True, "layer_norm_eps": 1e-5, "logit_scale": 0.0625},
)
COHERE2 = Architecture(
    name="cohere2",
    layer_tensors=COMMAND_R.layer_tensors,
    optional_layer_tensors=biases(*SEPARATE_QKV),
    norm="layer",
    window_period=4,
    float_keys={"logit_scale": "logit_scale"},
    metadata=attention_metadata.rope_without_scaling,
    defaults=COMMAND_R.defaults,
)
BY_CLASS = {
    "CohereForCausalLM": COMMAND_R,
    "Cohere2ForCausalLM": COHERE2,
}

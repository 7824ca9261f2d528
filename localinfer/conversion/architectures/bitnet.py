"""BitNet: ternary matrices, and norms before the last matrix product of a branch."""

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures.common import GATED_FFN, RELU2, SEPARATE_QKV
from localinfer.conversion.architectures.llama import LLAMA
from localinfer.conversion.metadata import attention_metadata

BITNET = Architecture(
    name="bitnet",
    layer_tensors=(*LLAMA.layer_tensors, "attn_sub_norm", "ffn_sub_norm"),
    ternary_tensors=(*SEPARATE_QKV, *GATED_FFN),
    metadata=attention_metadata.linear_rope_scale_one,
)
BITNET_B158 = Architecture(
    name="bitnet-b1.58",
    name_map_architecture="bitnet",
    layer_tensors=BITNET.layer_tensors,
    tensor_names={"self_attn.attn_sub_norm": "attn_sub_norm", "mlp.ffn_sub_norm": "ffn_sub_norm"},
    ternary_tensors=BITNET.ternary_tensors,
    activations=RELU2,
    metadata=attention_metadata.linear_rope_scale_one,
)
BY_CLASS = {
    "BitnetForCausalLM": BITNET,
    "BitNetForCausalLM": BITNET_B158,
}

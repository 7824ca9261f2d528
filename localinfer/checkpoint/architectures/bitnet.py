"""BitNet: matrices of -m, 0 and m, and norms before the last product of a branch."""

from localinfer.checkpoint import own_keys
from localinfer.checkpoint.architecture import Architecture
from localinfer.checkpoint.architectures.common import APART, GATED, RELU2
from localinfer.checkpoint.architectures.llama import LLAMA

BITNET = Architecture(
    name="bitnet",
    block=(*LLAMA.block, "attn_sub_norm", "ffn_sub_norm"),
    ternary=(*APART, *GATED),
    own_keys=own_keys.unscaled,
)
BITNET_B158 = Architecture(
    name="bitnet-b1.58",
    like="bitnet",
    block=BITNET.block,
    names={"self_attn.attn_sub_norm": "attn_sub_norm", "mlp.ffn_sub_norm": "ffn_sub_norm"},
    ternary=BITNET.ternary,
    activation=RELU2,
    own_keys=own_keys.unscaled,
)
BY_CLASS = {
    "BitnetForCausalLM": BITNET,
    "BitNetForCausalLM": BITNET_B158,
}

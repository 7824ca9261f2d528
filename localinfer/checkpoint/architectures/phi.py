"""Phi: the second, the third, and the one with experts."""

from localinfer.checkpoint import own_keys
from localinfer.checkpoint.architecture import Architecture
from localinfer.checkpoint.architectures.common import APART, BEFORE, EXPERTS, FUSED, GELU, PLAIN, W123, biases

PHI2 = Architecture(
    name="phi2",
    block=("attn_norm", "attn_norm.bias", *APART, *biases(*APART), *PLAIN, *biases(*PLAIN)),
    model=("output_norm.bias", "output.bias"),
    norm="layer",
    activation=GELU,
    part_turns=True,
    fixed={"qk_layernorm": False},
    defaults={"partial_rotary_factor": 0.5},
)
PHI3 = Architecture(
    name="phi3",
    block=(*BEFORE, *FUSED, *PLAIN),
    sizes={"ffn_up": ("n_gate_and_up", "n_embd")},
    part_turns=True,
    period=0,
    own_keys=own_keys.original_context,
)
PHIMOE = Architecture(
    name="phimoe",
    block=(*BEFORE, *biases(*BEFORE), *APART, *EXPERTS),
    optional=biases(*APART),
    model=("output_norm.bias",),
    optional_model=("output.bias",),
    names={f"block_sparse_moe.experts.{old}": new for old, new in zip(W123, EXPERTS[1:], strict=True)},
    own_keys=own_keys.experts_of_phi,
    fixed={"router_jitter_noise": 0.01, "num_experts_per_tok": 2},
)
BY_CLASS = {
    "PhiForCausalLM": PHI2,
    "Phi3ForCausalLM": PHI3,
    "PhiMoEForCausalLM": PHIMOE,
    "PhimoeForCausalLM": PHIMOE,
}

"""GLM 4, dense and with experts. (GLM 4.7 Flash is one of latent.py.)"""

from localinfer.checkpoint import own_keys
from localinfer.checkpoint.architecture import Architecture
from localinfer.checkpoint.architectures.common import APART, BEFORE, BEHIND, GATED, HEAD_NORMS, PLAIN, biases
from localinfer.checkpoint.architectures.experts import DOTS1

GLM4 = Architecture(
    name="glm4",
    block=(*BEFORE, *BEHIND, *APART, *PLAIN),
    optional=biases("attn_q", "attn_k", "attn_v"),
    sizes={"ffn_up": ("n_gate_and_up", "n_embd")},
    part_turns=True,
    defaults={"partial_rotary_factor": 0.5},
)
GLM4MOE = Architecture(
    name="glm4moe",
    block=("attn_norm", "post_attention_norm", *APART),
    optional=(*HEAD_NORMS, *biases("attn_q", "attn_k", "attn_v")),
    mixture=DOTS1.mixture,
    dense=GATED,
    names=DOTS1.names,
    part_turns=True,
    predicts_further=True,
    scales=DOTS1.scales,
    flags=DOTS1.flags,
    counts=DOTS1.counts,
    own_keys=own_keys.experts_of_glm,
    fixed=DOTS1.fixed,
    defaults={**DOTS1.defaults, "partial_rotary_factor": 0.5},
)
BY_CLASS = {
    "Glm4ForCausalLM": GLM4,
    "Glm4MoeForCausalLM": GLM4MOE,
}

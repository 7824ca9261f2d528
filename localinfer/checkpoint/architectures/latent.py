"""Keys and values from one narrow vector: DeepSeek, and what is built like it."""

from dataclasses import replace

from localinfer.checkpoint import own_keys
from localinfer.checkpoint.architecture import Architecture
from localinfer.checkpoint.architectures.common import BEFORE, EXPERTS, GATED, SHARED
from localinfer.checkpoint.architectures.experts import DOTS1
from localinfer.checkpoint.stored import reorder

LATENT = ("attn_kv_a_mqa", "attn_kv_a_norm", "attn_k_b", "attn_v_b", "attn_output")
NARROW_QUERIES = ("attn_q_a", "attn_q_a_norm", "attn_q_b")
DEEPSEEK2 = Architecture(
    name="deepseek2",
    block=(*BEFORE, *LATENT),
    optional=("attn_q", *NARROW_QUERIES),
    mixture=(*EXPERTS, *SHARED),
    dense=GATED,
    sizes={"attn_q": ("n_q", "n_embd"), "attn_output": ("n_embd", "n_values")},
    parts=dict.fromkeys(("attn_k_b", "attn_v_b"), "attn_kv_b"),
    reorder={"attn_k_b": reorder.keys_of_latent, "attn_v_b": reorder.values_of_latent},
    part_turns=True,
    predicts_further=True,
    spellings={"head_dim": "qk_rope_head_dim"},
    scales=DOTS1.scales,
    counts={"first_k_dense_replace": "leading_dense_block_count", "n_shared_experts": "expert_shared_count"},
    own_numbers=own_keys.numbers_of_latent,
    own_keys=own_keys.latent,
    fixed={"rope_interleave": True, "moe_layer_freq": 1},
    defaults={"scoring_func": "softmax"},
)
DEEPSEEK3 = replace(
    DEEPSEEK2,
    mixture=(*DEEPSEEK2.mixture, "exp_probs_b.bias"),
    names=DOTS1.names,
    fixed={**DEEPSEEK2.fixed, "topk_method": "noaux_tc", "scoring_func": "sigmoid"},
    defaults={"scoring_func": "sigmoid"},
)
MISTRAL4 = replace(
    DEEPSEEK2,
    name="mistral4",
    mixture=("ffn_gate_inp", "ffn_gate_up_exps", "ffn_down_exps", *SHARED),
    sizes={**DEEPSEEK2.sizes, "ffn_gate_up_exps": ("n_expert", "n_gate_and_up_expert", "n_embd")},
    own_keys=own_keys.growing_latent,
)
BY_CLASS = {
    "DeepseekV2ForCausalLM": DEEPSEEK2,
    "DeepseekV3ForCausalLM": DEEPSEEK3,
    "Glm4MoeLiteForCausalLM": DEEPSEEK3,
    "Mistral4ForCausalLM": MISTRAL4,
}

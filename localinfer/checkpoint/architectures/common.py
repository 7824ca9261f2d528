"""Tensors of blocks that several architectures have, under one word."""

from localinfer.checkpoint.stored import reorder

BEFORE = ("attn_norm", "ffn_norm")  # norms before the branches
BEHIND = ("post_attention_norm", "post_ffw_norm")  # ... before they join the residual stream
HEAD_NORMS = ("attn_q_norm", "attn_k_norm")
APART = ("attn_q", "attn_k", "attn_v", "attn_output")
FUSED = ("attn_qkv", "attn_output")
PLAIN = ("ffn_up", "ffn_down")
GATED = ("ffn_gate", *PLAIN)  # glm4 and phi3 have the gate in ffn_up
EXPERTS = ("ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
W123 = ("w1", "w3", "w2")  # gates, ups and downs, in some checkpoints
SHARED = ("ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp")
GELU, EXACT_GELU, RELU2 = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast"), ("gelu",), ("relu2",)
NEIGHBOURS = {
    "attn_q": reorder.neighbouring_queries,
    "attn_q.bias": reorder.neighbouring_queries,
    "attn_k": reorder.neighbouring_keys,
    "attn_k.bias": reorder.neighbouring_keys,
}
FUSED_EXPERTS = dict.fromkeys(("ffn_gate_exps", "ffn_up_exps"), "ffn_gate_up_exps")  # as transformers has them
FUSED_SIZES = {"ffn_gate_up_exps": ("n_expert", "n_gate_and_up_expert", "n_embd")}
HALVES = {"ffn_gate_exps": reorder.first_half, "ffn_up_exps": reorder.second_half}
GROUPS = {"n_group": "expert_group_count", "topk_group": "expert_group_used_count"}


def biases(*names: str) -> tuple[str, ...]:
    return tuple(f"{name}.bias" for name in names)

"""Groups of layer tensors and reorder functions that several architectures share."""

from localinfer.conversion.tensor_formats import reorder

PRE_NORMS = ("attn_norm", "ffn_norm")  # before attention and feed-forward network
POST_NORMS = ("post_attention_norm", "post_ffw_norm")  # before the residual addition
HEAD_NORMS = ("attn_q_norm", "attn_k_norm")
SEPARATE_QKV = ("attn_q", "attn_k", "attn_v", "attn_output")
FUSED_QKV = ("attn_qkv", "attn_output")
UNGATED_FFN = ("ffn_up", "ffn_down")
GATED_FFN = ("ffn_gate", *UNGATED_FFN)  # glm4 and phi3 have the gate in ffn_up
EXPERTS = ("ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
W123 = ("w1", "w3", "w2")  # gate, up and down in some checkpoints
SHARED_EXPERTS = ("ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp")
GELU, EXACT_GELU, RELU2 = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast"), ("gelu",), ("relu2",)
INTERLEAVED_ROPE = {
    "attn_q": reorder.interleave_query_halves,
    "attn_q.bias": reorder.interleave_query_halves,
    "attn_k": reorder.interleave_key_halves,
    "attn_k.bias": reorder.interleave_key_halves,
}
FUSED_EXPERTS = dict.fromkeys(("ffn_gate_exps", "ffn_up_exps"), "ffn_gate_up_exps")  # as in transformers
FUSED_EXPERT_SHAPES = {"ffn_gate_up_exps": ("n_expert", "n_gate_and_up_expert", "n_embd")}
SPLIT_EXPERTS = {"ffn_gate_exps": reorder.first_half, "ffn_up_exps": reorder.second_half}
EXPERT_GROUPS = {"n_group": "expert_group_count", "topk_group": "expert_group_used_count"}


def biases(*names: str) -> tuple[str, ...]:
    """Return the names of the biases of tensors."""
    return tuple(f"{name}.bias" for name in names)

"""How large tensors are, in the words of `Numbers`: rows first. A bias is as long as its matrix has rows."""

from collections.abc import Mapping

from localinfer.checkpoint.numbers import Numbers

N, FF, Q, KV, HEAD = "n_embd", "n_ff", "n_q", "n_kv", "head_dim"
E, EFF = "n_expert", "n_ff_expert"
USUAL = {
    "token_embd": ("n_vocab", N),
    "position_embd": ("n_ctx", N),
    "token_embd_norm": (N,),
    "output_norm": (N,),
    "output": ("n_vocab", N),
    "attn_norm": (N,),
    "attn_norm_2": (N,),
    "attn_q": (Q, N),
    "attn_k": (KV, N),
    "attn_v": (KV, N),
    "attn_qkv": ("n_qkv", N),
    "attn_q_norm": (HEAD,),
    "attn_k_norm": (HEAD,),
    "attn_sub_norm": (Q,),
    "attn_output": (N, Q),
    "post_attention_norm": (N,),
    "ffn_norm": (N,),
    "ffn_gate": (FF, N),
    "ffn_up": (FF, N),
    "ffn_sub_norm": (FF,),
    "ffn_down": (N, FF),
    "post_ffw_norm": (N,),
    "shortconv.in_proj": ("n_3embd", N),
    "shortconv.conv": (N, "width"),
    "shortconv.out_proj": (N, N),
    "ssm_in": ("n_in", N),
    "ssm_d": ("n_heads",),
    "attn_gate": ("n_values", N),
    "ssm_conv1d": ("n_convolved", "width"),
    "ssm_alpha": ("n_heads", N),
    "ssm_beta": ("n_heads", N),
    "ssm_dt": ("n_heads",),
    "ssm_a": ("n_heads",),
    "ssm_norm": ("n_value",),
    "ssm_out": (N, "n_values"),
    "ffn_gate_inp": (E, N),
    "ffn_gate_exps": (E, EFF, N),
    "ffn_up_exps": (E, EFF, N),
    "ffn_down_exps": (E, N, EFF),
}


def shape_of(name: str, own: Mapping[str, tuple[str, ...]], numbers: Numbers) -> tuple[int, ...]:
    """Of a tensor without its block; `own` are the architecture's sizes that are not usual."""
    matrix = name.removesuffix(".bias")
    sizes = own.get(matrix, USUAL[matrix])
    return tuple(numbers.size(size) for size in sizes[: 1 if matrix != name else None])

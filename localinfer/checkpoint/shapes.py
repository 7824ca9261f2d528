"""How large tensors are, in the words of `Numbers`: rows first. A bias is as long as its matrix has rows."""

from collections.abc import Mapping

from localinfer.checkpoint.numbers import Numbers

N, FF, Q, KV, HEAD = "n_embd", "n_ff", "n_q", "n_kv", "head_dim"
E, EFF = "n_expert", "n_ff_expert"
USUAL = {
    "token_embd": ("n_vocab", N),
    "position_embd": ("n_positions", N),
    "token_types": ("n_types", N),
    "token_embd_norm": (N,),
    "cls": (N, N),
    "cls.norm": (N,),
    "cls.output": ("n_labels", N),
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
    "attn_output_norm": (N,),
    "layer_output_norm": (N,),
    "post_attention_norm": (N,),
    "ffn_norm": (N,),
    "ffn_gate": (FF, N),
    "ffn_up": (FF, N),
    "ffn_sub_norm": (FF,),
    "ffn_down": (N, FF),
    "post_ffw_norm": (N,),
    "ffn_gate_inp": (E, N),
    "ffn_gate_exps": (E, EFF, N),
    "ffn_up_exps": (E, EFF, N),
    "ffn_down_exps": (E, N, EFF),
    "ffn_gate_inp.scale": (N,),
    "ffn_down_exps.scale": (E,),
    "pre_ffw_norm_2": (N,),
    "post_ffw_norm_1": (N,),
    "post_ffw_norm_2": (N,),
    "per_layer_token_embd": ("n_vocab", "n_inputs"),
    "per_layer_model_proj": ("n_inputs", N),
    "per_layer_proj_norm": ("n_input",),
    "inp_gate": ("n_input", N),
    "proj": (N, "n_input"),
    "post_norm": (N,),
    "layer_output_scale": ("one",),
}


def shape_of(name: str, own: Mapping[str, tuple[str, ...]], numbers: Numbers) -> tuple[int, ...]:
    """Of a tensor without its block; `own` are the architecture's sizes that are not usual."""
    matrix = name.removesuffix(".bias")
    sizes = own.get(matrix) or USUAL[matrix]
    return tuple(getattr(numbers, size) for size in sizes[: 1 if matrix != name else None])

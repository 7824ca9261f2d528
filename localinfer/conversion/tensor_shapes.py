"""Tensor shapes in terms of `HParams` dimensions, rows first. A bias has as many values as its matrix has rows."""

from collections.abc import Mapping

from localinfer.conversion.hparams import HParams
from localinfer.errors import UsageError
from localinfer.escaping import printable

N, FF, Q, KV, HEAD = "n_embd", "n_ff", "n_q", "n_kv", "head_dim"
E, EFF, SFF = "n_expert", "n_ff_expert", "n_ff_shared"
DEFAULT_SHAPES = {
    "token_embd": ("n_vocab", N),
    "position_embd": ("n_positions", N),
    "token_types": ("n_token_types", N),
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
    "attn_v": ("n_kv_values", N),
    "attn_qkv": ("n_qkv", N),
    "attn_q_norm": (HEAD,),
    "attn_k_norm": (HEAD,),
    "attn_q_a": ("q_rank", N),
    "attn_q_a_norm": ("q_rank",),
    "attn_q_b": ("n_q", "q_rank"),
    "attn_kv_a_mqa": ("n_kv_a", N),
    "attn_kv_a_norm": ("kv_rank",),
    "attn_kv_b": ("n_kv_b", "kv_rank"),
    "attn_k_b": ("n_head", "kv_rank", "n_qk_nope"),
    "attn_v_b": ("n_head", "n_value", "kv_rank"),
    "attn_sub_norm": (Q,),
    "attn_output": (N, "n_q_values"),
    "attn_o": (N, "n_q_values"),
    "attn_rel_b": ("n_buckets", "n_head"),
    "cross_attn_norm": (N,),
    "cross_attn_q": (Q, N),
    "cross_attn_k": (KV, N),
    "cross_attn_v": ("n_kv_values", N),
    "cross_attn_o": (N, "n_q_values"),
    "enc.output_norm": (N,),
    "dec.output_norm": (N,),
    "attn_output_norm": (N,),
    "layer_output_norm": (N,),
    "attn_sinks": ("n_head",),
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
    "ssm_x": ("n_x", "n_values"),
    "attn_gate": ("n_values", N),
    "ssm_conv1d": ("n_convolved", "width"),
    "ssm_alpha": ("n_heads", N),
    "ssm_beta": ("n_heads", N),
    "ssm_ba": ("n_2heads", N),
    "ssm_dt": ("n_heads",),
    "ssm_a": ("n_heads",),
    "ssm_norm": ("n_value",),
    "ssm_out": (N, "n_values"),
    "ffn_gate_inp": (E, N),
    "ffn_gate_exps": (E, EFF, N),
    "ffn_up_exps": (E, EFF, N),
    "ffn_down_exps": (E, N, EFF),
    "ffn_gate_inp.scale": (N,),
    "ffn_down_exps.scale": (E,),
    "ffn_latent_down": ("n_latent", N),
    "ffn_latent_up": (N, "n_latent"),
    "pre_ffw_norm_2": (N,),
    "post_ffw_norm_1": (N,),
    "post_ffw_norm_2": (N,),
    "per_layer_token_embd": ("n_vocab", "n_embd_all_layers"),
    "per_layer_model_proj": ("n_embd_all_layers", N),
    "per_layer_proj_norm": ("n_embd_per_layer",),
    "inp_gate": ("n_embd_per_layer", N),
    "proj": (N, "n_embd_per_layer"),
    "post_norm": (N,),
    "layer_output_scale": ("one",),
    "altup_proj": ("n_others", N, N),
    "altup_unembd_proj": ("n_others", N, N),
    "altup_router": ("n_streams", N),
    "altup_router_norm": (N,),
    "altup_predict_coef": ("n_streams_squared", "n_streams"),
    "altup_correct_coef": ("n_streams", "n_streams"),
    "altup_correct_scale": (N,),
    "laurel_l": ("rank", N),
    "laurel_r": (N, "rank"),
    "laurel_post_norm": (N,),
    "nextn.eh_proj": (N, "n_2embd"),
    "nextn.enorm": (N,),
    "nextn.hnorm": (N,),
    "nextn.embed_tokens": ("n_vocab", N),
    "nextn.shared_head_head": ("n_vocab", N),
    "nextn.shared_head_norm": (N,),
    "exp_probs_b": (E,),
    "exp_probs_b.bias": (E,),
    "ffn_gate_inp_shexp": ("one", N),
    "ffn_gate_shexp": (SFF, N),
    "ffn_up_shexp": (SFF, N),
    "ffn_down_shexp": (N, SFF),
    "ffn_gate_up_shexp": ("n_gate_and_up_shared", N),
    "ffn_gate_up_exps": (E, N, "n_gate_and_up_expert"),  # only gpt-oss, which stores transposed matrices
    "ffn_gate_up_exps.bias": (E, "n_gate_and_up_expert"),
}


def shape_of(name: str, architecture_shapes: Mapping[str, tuple[str, ...]], hparams: HParams) -> tuple[int, ...]:
    """Return the shape of a tensor, named without its layer; `architecture_shapes` override the default shapes.

    Raises UsageError for a tensor or a size that is unknown: a conversion file of the user has such names.
    """
    sizes = (
        architecture_shapes.get(name)
        or DEFAULT_SHAPES.get(name)
        or bias_shape(name.removesuffix(".bias"), architecture_shapes)
    )
    if not sizes:
        raise UsageError(f"conversion (--conversion): tensor {printable(name, 80)} has no entry in `shapes`")
    return tuple(hparams.size(size) for size in sizes)


def bias_shape(name: str, architecture_shapes: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the dimensions of the bias of a matrix, of stacked matrices or of a norm; () if it is unknown."""
    sizes = architecture_shapes.get(name) or DEFAULT_SHAPES.get(name, ())
    return sizes[: max(1, len(sizes) - 1)]

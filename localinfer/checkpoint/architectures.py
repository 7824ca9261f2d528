"""What the architectures' tensors are called in a checkpoint and in a GGUF file, and which shapes they have.

Facts, as tables. One more architecture is a row in BY_CLASS, and an Architecture that says how it differs from llama;
its numbers are in hyperparameters.py, where all have the same names. Names of tensors are without ".weight" where they
have that ending; sizes are named as in `hyperparameters.Numbers`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from localinfer.checkpoint.folder import Table
from localinfer.errors import Unsupported
from localinfer.text import printable

N, FF, Q, KV, HEAD, VOCAB = "n_embd", "n_ff", "n_q", "n_kv", "head_dim", "n_vocab"
Rows = dict[str, tuple[str, ...]]  # a checkpoint's name -> GGUF's name, then the sizes of its shape

MODEL: Rows = {
    "model.embed_tokens": ("token_embd", VOCAB, N),
    "model.norm": ("output_norm", N),
}
HEAD_OF_MODEL: Rows = {"lm_head": ("output", VOCAB, N)}  # unless it is the embedding
MATRICES: Rows = {
    "self_attn.q_proj": ("attn_q", Q, N),
    "self_attn.k_proj": ("attn_k", KV, N),
    "self_attn.v_proj": ("attn_v", KV, N),
    "self_attn.o_proj": ("attn_output", N, Q),
    "mlp.gate_proj": ("ffn_gate", FF, N),
    "mlp.up_proj": ("ffn_up", FF, N),
    "mlp.down_proj": ("ffn_down", N, FF),
}
NORMS: Rows = {
    "input_layernorm": ("attn_norm", N),
    "post_attention_layernorm": ("ffn_norm", N),
}
NORMS_AROUND: Rows = {  # a branch is normalised before it joins the residual stream, too
    "input_layernorm": ("attn_norm", N),
    "post_attention_layernorm": ("post_attention_norm", N),
    "pre_feedforward_layernorm": ("ffn_norm", N),
    "post_feedforward_layernorm": ("post_ffw_norm", N),
}
HEAD_NORMS: Rows = {
    "self_attn.q_norm": ("attn_q_norm", HEAD),
    "self_attn.k_norm": ("attn_k_norm", HEAD),
}
QKV_BIASES: Rows = {
    "self_attn.q_proj.bias": ("attn_q.bias", Q),
    "self_attn.k_proj.bias": ("attn_k.bias", KV),
    "self_attn.v_proj.bias": ("attn_v.bias", KV),
}


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """`name` is GGUF's. `layer` are the tensors of a block, `defaults` what config.json may leave out."""

    name: str
    layer: Rows
    pairs: str = "halves"  # which values of a head turn together in GGUF: a checkpoint has halves always
    norm_offset: float = 0.0  # a checkpoint's norms are stored less that much
    activation: str = "silu"
    windows: bool = False  # whether there are layers that see a window only
    defaults: dict[str, Any] = field(default_factory=dict)


LLAMA = Architecture(name="llama", layer=NORMS | MATRICES, pairs="neighbours")
QWEN2 = Architecture(name="qwen2", layer=NORMS | MATRICES | QKV_BIASES)
QWEN3 = Architecture(name="qwen3", layer=NORMS | MATRICES | HEAD_NORMS)
GEMMA3 = Architecture(
    name="gemma3",
    layer=NORMS_AROUND | MATRICES | HEAD_NORMS,
    norm_offset=1.0,
    activation="gelu_pytorch_tanh",
    windows=True,
    defaults={  # the larger models' configurations say only what is different
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
        "sliding_window": 4096,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "query_pre_attn_scalar": 256,
        "tie_word_embeddings": True,
    },
)

BY_CLASS = {
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": LLAMA,
    "Gemma3ForCausalLM": GEMMA3,
    "Gemma3ForConditionalGeneration": GEMMA3,  # its text model; what sees pictures is left out
    "Qwen2ForCausalLM": QWEN2,
    "Qwen3ForCausalLM": QWEN3,
}


def find(config: Table) -> tuple[Architecture, Table]:
    """The architecture that config.json names, and the table of its numbers, with defaults.

    Raises Unsupported naming the architecture and those that are known.
    """
    classes = config.get("architectures", list)
    name = classes[0] if classes else None
    if not isinstance(name, str) or name not in BY_CLASS:
        what = f"{printable(repr(name), 80)} is not supported (only {', '.join(BY_CLASS)})"
        raise config.error("architectures", what, Unsupported)
    architecture = BY_CLASS[name]
    text = config.table("text_config")
    values = architecture.defaults | without_nulls(config.values) | without_nulls(text.values)
    return architecture, Table(config.path, values)


def without_nulls(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}

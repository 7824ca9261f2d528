"""Heads that are trained beside a model, to guess what it says next."""

from localinfer.checkpoint import eagle3
from localinfer.checkpoint.architecture import Architecture
from localinfer.checkpoint.architectures.common import APART, GATED, NEIGHBOURS

EAGLE3 = Architecture(
    name="eagle3",
    like="llama",
    beside=True,
    block=("attn_norm", "attn_norm_2", *APART, "ffn_norm", *GATED),
    model=("fc",),
    optional_model=("token_embd", "output", "enc.output_norm"),
    sizes={
        "fc": ("n_embd", "n_features"),
        "enc.output_norm": ("n_features",),
        "output": ("n_draft", "n_embd"),
        "attn_q": ("n_q", "n_pair"),
        "attn_k": ("n_kv", "n_pair"),
        "attn_v": ("n_kv", "n_pair"),
    },
    names={
        "fc.weight": "fc.weight",
        "input_norm.weight": "enc.output_norm.weight",
        "norm.weight": "output_norm.weight",
        "embed_tokens.weight": "token_embd.weight",
        "hidden_norm": "attn_norm_2",
    },
    reorder=NEIGHBOURS,
    own_numbers=eagle3.numbers,
    own_keys=eagle3.keys,
)

"""RWKV-7: recurrent states and token shift."""

from localinfer.conversion import recurrent_metadata
from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures.common import biases

LORAS = {"w": "decay_rank", "a": "rate_rank", "v": "value_rank", "g": "gate_rank"}  # RWKV-7's low-rank projections
RWKV7 = Architecture(
    name="rwkv7",
    layer_tensors=(
        *("attn_norm", "attn_norm_2", "time_mix_ln"),
        *biases("attn_norm", "attn_norm_2", "time_mix_ln"),
        *(f"time_mix_{kind}" for kind in ("lerp_fused", "k_k", "k_a", "r_k", "receptance", "key", "value", "output")),
        *(f"time_mix_{kind}" for kind in ("w0", "w1", "w2", "a0", "a1", "a2", "g1", "g2")),
        *(f"channel_mix_{kind}" for kind in ("lerp_k", "key", "value")),
    ),
    not_first_layer_tensors=tuple(f"time_mix_v{number}" for number in range(3)),
    model_tensors=("token_embd_norm", "token_embd_norm.bias", "output_norm.bias"),
    shapes={
        **{f"time_mix_{kind}1": (rank, "n_embd") for kind, rank in LORAS.items()},
        **{f"time_mix_{kind}2": ("n_embd", rank) for kind, rank in LORAS.items()},
        **{f"time_mix_{kind}": ("n_embd",) for kind in ("w0", "a0", "v0", "k_k", "k_a", "ln")},
        **{f"time_mix_{kind}": ("n_embd", "n_embd") for kind in ("receptance", "key", "value", "output")},
        "time_mix_r_k": ("n_heads", "head_dim"),
        "time_mix_lerp_fused": ("n_lerps", "one", "one", "n_embd"),
        "channel_mix_lerp_k": ("n_embd",),
        "channel_mix_key": ("n_ff", "n_embd"),
        "channel_mix_value": ("n_embd", "n_ff"),
        "attn_norm_2": ("n_embd",),
    },
    final_shapes={"time_mix_r_k": ("n_embd",)},
    fused_sources={f"time_mix_{kind}0": f"time_mix_{kind}2.bias" for kind in "wav"},
    copied_tensors={f"blk.0.time_mix_v{number}.weight": f"blk.0.time_mix_a{number}.weight" for number in range(3)},
    ignored_tensors=r"model\.layers\.0\.attn\.v_lora\..*",
    tensor_names={
        "attn_norm": "attn_norm",
        "ffn_norm": "attn_norm_2",
        "attn.g_norm": "time_mix_ln",
        "attn.x_": "time_mix_lerp_fused",
        **{f"attn.{kind}": f"time_mix_{kind}" for kind in ("k_k", "k_a", "r_k")},
        **{f"attn.{kind}_lora.lora.0": f"time_mix_{kind}1" for kind in LORAS},
        **{f"attn.{kind}_lora.lora.2": f"time_mix_{kind}2" for kind in LORAS},
        **{f"attn.{kind[0]}_proj": f"time_mix_{kind}" for kind in ("receptance", "key", "value", "output")},
        "ffn.x_k": "channel_mix_lerp_k",
        **{f"ffn.{kind}": f"channel_mix_{kind}" for kind in ("key", "value")},
    },
    ffn_multiplier=4,
    norm="layer",
    activations=("sqrelu",),
    has_attention=False,
    has_rope=False,
    read_hparams=recurrent_metadata.rwkv_hparams,
    metadata=recurrent_metadata.rwkv_metadata,
    required_values={"norm_first": True, "norm_bias": True, "attn": None},
    defaults={
        "num_attention_heads": 1,
        "max_position_embeddings": 1 << 20,
        "head_dim": 64,
        "tie_word_embeddings": False,
    },
)
BY_CLASS = {
    "RWKV7ForCausalLM": RWKV7,
}

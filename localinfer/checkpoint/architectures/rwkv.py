"""RWKV: states, and tokens mixed with those before them."""

from localinfer.checkpoint import own_keys
from localinfer.checkpoint.architecture import Architecture
from localinfer.checkpoint.architectures.common import biases

LORAS = {"w": "decay_rank", "a": "rate_rank", "v": "value_rank", "g": "gate_rank"}  # of RWKV-7's narrow places
RWKV7 = Architecture(
    name="rwkv7",
    block=(
        *("attn_norm", "attn_norm_2", "time_mix_ln"), *biases("attn_norm", "attn_norm_2", "time_mix_ln"),
        *(f"time_mix_{kind}" for kind in ("lerp_fused", "k_k", "k_a", "r_k", "receptance", "key", "value", "output")),
        *(f"time_mix_{kind}" for kind in ("w0", "w1", "w2", "a0", "a1", "a2", "g1", "g2")),
        *(f"channel_mix_{kind}" for kind in ("lerp_k", "key", "value")),
    ),
    not_first=tuple(f"time_mix_v{number}" for number in range(3)),
    model=("token_embd_norm", "token_embd_norm.bias", "output_norm.bias"),
    sizes={
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
    folded={"time_mix_r_k": ("n_embd",)},
    parts={f"time_mix_{kind}0": f"time_mix_{kind}2.bias" for kind in "wav"},
    stand_ins={f"blk.0.time_mix_v{number}.weight": f"blk.0.time_mix_a{number}.weight" for number in range(3)},
    left_out=r"model\.layers\.0\.attn\.v_lora\..*",
    names={
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
    times=4,
    norm="layer",
    activation=("sqrelu",),
    attends=False,
    turns=False,
    own_numbers=own_keys.numbers_of_rwkv,
    own_keys=own_keys.narrow_places,
    fixed={"norm_first": True, "norm_bias": True, "attn": None},
    defaults={
        "num_attention_heads": 1, "max_position_embeddings": 1 << 20, "head_dim": 64, "tie_word_embeddings": False
    },
)
BY_CLASS = {
    "RWKV7ForCausalLM": RWKV7,
}

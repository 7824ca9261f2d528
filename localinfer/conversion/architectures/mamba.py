"""Mamba and Mamba-2: recurrent states without attention."""


from localinfer.conversion.architecture import Architecture
from localinfer.conversion.metadata import recurrent_metadata

SSM_TENSORS = (
    "ssm_in",
    "ssm_conv1d",
    "ssm_conv1d.bias",
    "ssm_dt.bias",
    "ssm_a",
    "ssm_d",
    "ssm_out",
)  # tensors of recurrent heads
MAMBA2 = Architecture(
    name="mamba2",
    layer_tensors=("attn_norm", *SSM_TENSORS, "ssm_norm"),
    shapes={"ssm_norm": ("n_values",)},
    final_shapes={"ssm_a": ("n_heads", "one"), "ssm_d": ("n_heads", "one"), "ssm_norm": ("n_groups", "n_of_group")},
    has_attention=False,
    has_rope=False,
    key_aliases={"rms_norm_eps": "layer_norm_epsilon"},
    read_hparams=recurrent_metadata.mamba2_hparams,
    metadata=recurrent_metadata.ssm_shape,
    required_values={"use_bias": False, "use_conv_bias": True},
    defaults={  # the first two do not affect the result
        "num_attention_heads": 1,
        "intermediate_size": 1,
        "max_position_embeddings": 1 << 20,
        "tie_word_embeddings": False,
    },
)
MAMBA = Architecture(
    name="mamba",
    layer_tensors=(
        "attn_norm", "ssm_in", "ssm_conv1d", "ssm_conv1d.bias", "ssm_x", "ssm_dt", "ssm_dt.bias", "ssm_a", "ssm_d",
        "ssm_out",
    ),
    shapes={"ssm_dt": ("n_values", "rank"), "ssm_a": ("n_values", "n_key"), "ssm_d": ("n_values",)},
    has_attention=False,
    has_rope=False,
    ffn_multiplier=2,
    key_aliases=MAMBA2.key_aliases,
    read_hparams=recurrent_metadata.mamba_hparams,
    metadata=recurrent_metadata.mamba,
    required_values={"use_bias": False, "use_conv_bias": True},
    defaults={"num_attention_heads": 1, "max_position_embeddings": 1 << 20, "tie_word_embeddings": True},
)  # fmt: skip
BY_CLASS = {
    "Mamba2ForCausalLM": MAMBA2,
    "MambaForCausalLM": MAMBA,
}

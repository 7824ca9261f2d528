"""Mamba: states alone, without attention."""

from math import inf

from localinfer.checkpoint import own_keys
from localinfer.checkpoint.architecture import Architecture

STATES = ("ssm_in", "ssm_conv1d", "ssm_conv1d.bias", "ssm_dt.bias", "ssm_a", "ssm_d", "ssm_out")  # of recurrent heads
MAMBA2 = Architecture(
    name="mamba2",
    block=("attn_norm", *STATES, "ssm_norm"),
    sizes={"ssm_norm": ("n_values",)},
    folded={"ssm_a": ("n_heads", "one"), "ssm_d": ("n_heads", "one"), "ssm_norm": ("n_groups", "n_of_group")},
    attends=False,
    turns=False,
    spellings={"rms_norm_eps": "layer_norm_epsilon"},
    own_numbers=own_keys.numbers_of_mamba2,
    own_keys=own_keys.states,
    fixed={"use_bias": False, "use_conv_bias": True, "time_step_limit": [0.0, inf]},
    defaults={  # the first two change nothing that is written
        "num_attention_heads": 1,
        "intermediate_size": 1,
        "max_position_embeddings": 1 << 20,
        "tie_word_embeddings": False,
    },
)
MAMBA = Architecture(
    name="mamba",
    block=(
        "attn_norm", "ssm_in", "ssm_conv1d", "ssm_conv1d.bias", "ssm_x", "ssm_dt", "ssm_dt.bias", "ssm_a", "ssm_d",
        "ssm_out",
    ),
    sizes={"ssm_dt": ("n_values", "rank"), "ssm_a": ("n_values", "n_key"), "ssm_d": ("n_values",)},
    attends=False,
    turns=False,
    times=2,
    spellings=MAMBA2.spellings,
    own_numbers=own_keys.numbers_of_mamba,
    own_keys=own_keys.scans,
    fixed={"use_bias": False, "use_conv_bias": True},
    defaults={"num_attention_heads": 1, "max_position_embeddings": 1 << 20, "tie_word_embeddings": True},
)  # fmt: skip
BY_CLASS = {
    "Mamba2ForCausalLM": MAMBA2,
    "MambaForCausalLM": MAMBA,
}

"""Command R: one norm before both branches, none behind."""

from localinfer.checkpoint import own_keys
from localinfer.checkpoint.architecture import Architecture
from localinfer.checkpoint.architectures.common import APART, GATED, HEAD_NORMS

COMMAND_R = Architecture(
    name="command-r",
    block=("attn_norm", *APART, *GATED),
    optional=HEAD_NORMS,
    sizes={"attn_q_norm": ("n_head", "head_dim"), "attn_k_norm": ("n_head_kv", "head_dim")},
    norm="layer",
    spellings={"max_position_embeddings": "model_max_length"},
    scales={"logit_scale": "logit_scale"},
    own_keys=own_keys.not_scaled,
    defaults={"tie_word_embeddings": True, "layer_norm_eps": 1e-5, "logit_scale": 0.0625},
)
COHERE2 = Architecture(
    name="cohere2",
    block=COMMAND_R.block,
    norm="layer",
    period=4,
    scales={"logit_scale": "logit_scale"},
    own_keys=own_keys.not_scaled,
    defaults=COMMAND_R.defaults,
)
BY_CLASS = {
    "CohereForCausalLM": COMMAND_R,
    "Cohere2ForCausalLM": COHERE2,
}

"""Talkie, whose checkpoints rotate heads in the other direction, and have factors of branches and of the logits."""

from dataclasses import replace

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures.common import GATED_FFN, SEPARATE_QKV
from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.hparams import HParams
from localinfer.conversion.tensor_formats import reorder

EPSILON = 2.0**-23  # the distance from 1 to the next float32, which torch's RMSNorm has where none is given
ATTENTION = {"attn_query": "attn_q", "attn_key": "attn_k", "attn_value": "attn_v", "attn_resid": "attn_output"}
NETWORK = {"mlp_gate": "ffn_gate", "mlp_linear": "ffn_up", "mlp_resid": "ffn_down"}


def with_epsilon(config: JsonObject, hp: HParams) -> HParams:  # noqa: ARG001 (one signature for all)
    """Set the epsilon of the norms, which config.json does not have."""
    return replace(hp, eps=EPSILON)


TALKIE = Architecture(
    name="talkie",
    layer_tensors=(
        *SEPARATE_QKV, *GATED_FFN, "attn_q_norm", "attn_output.scale", "ffn_down.scale", "layer_output_scale",
    ),
    output_norm="",
    shapes={"attn_q_norm": ("n_head",), "attn_output.scale": ("one",), "ffn_down.scale": ("one",)},
    final_shapes={"attn_q_norm": ("n_head", "one")},
    reorder={"attn_q": reorder.reverse_query_rotation, "attn_k": reorder.reverse_key_rotation},
    tensor_names={
        "model.embed.weight": "token_embd.weight", "model.embed": "token_embd.weight", "lm_head": "output.weight",
        **{f"attn.{old}": new for old, new in ATTENTION.items()},
        **{f"mlp.{old}": new for old, new in NETWORK.items()},
        "attn.head_gain.head_g": "attn_q_norm", "attn_gain.a_g": "attn_output.scale",
        "mlp_gain.a_g": "ffn_down.scale", "embed_skip.a_g": "layer_output_scale",
    },
    layer_numbers={"lm_head_gain.w_g": "talkie.logit_scale"},
    read_hparams=with_epsilon,
    defaults={"rms_norm_eps": EPSILON},
)  # fmt: skip
BY_CLASS = {"TalkieForCausalLM": TALKIE}

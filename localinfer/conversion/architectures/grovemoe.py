"""GroveMoE, whose checkpoints are those of Qwen3 MoE with adjugate experts."""

from dataclasses import replace

from localinfer.conversion.architectures.qwen import QWEN3MOE
from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.hparams import HParams
from localinfer.conversion.metadata import expert_metadata
from localinfer.errors import UnsupportedError
from localinfer.gguf.source import Field

PER_ADJUGATE, SCALE = 2, 0.05  # constants of the model's code
ADJUGATE_SHAPES = {
    "ffn_gate_chexps": ("n_adjugate", "n_ff_adjugate", "n_embd"),
    "ffn_up_chexps": ("n_adjugate", "n_ff_adjugate", "n_embd"),
    "ffn_down_chexps": ("n_adjugate", "n_embd", "n_ff_adjugate"),
}


def adjugate_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Add the number of adjugate experts, and their feed-forward length, which is that of a head."""
    if hp.n_expert % PER_ADJUGATE:
        raise config.error("num_experts", f"is {hp.n_expert}; it must be even", UnsupportedError)
    return replace(hp, sizes={"n_adjugate": hp.n_expert // PER_ADJUGATE, "n_ff_adjugate": hp.head_dim})


def adjugate_experts(config: JsonObject, hp: HParams) -> dict[str, Field]:
    """Return the metadata of experts and of adjugate experts."""
    return expert_metadata.experts(config, hp) | {
        "expert_chunk_feed_forward_length": Field.uint32(hp.sizes["n_ff_adjugate"]),
        "experts_per_group": Field.uint32(PER_ADJUGATE),
        "expert_group_scale": Field.float32(SCALE),
    }


GROVEMOE = replace(
    QWEN3MOE,
    name="grovemoe",
    layer_tensors=(*QWEN3MOE.layer_tensors, *ADJUGATE_SHAPES),
    optional_layer_tensors=(),
    shapes=ADJUGATE_SHAPES,
    ignored_tensors=r".*\.expert_bias",
    may_have_window=False,
    read_hparams=adjugate_hparams,
    metadata=adjugate_experts,
    required_values={"mlp_only_layers": [], "decoder_sparse_step": 1, "attention_bias": False},
)
BY_CLASS = {"GroveMoeForCausalLM": GROVEMOE, "modeling_grove_moe.GroveMoeForCausalLM": GROVEMOE}

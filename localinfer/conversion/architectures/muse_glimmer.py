"""Muse Glimmer, whose checkpoints are vision models. Weights of the norms of heads hold the scale of the queries."""

from dataclasses import replace

import numpy as np

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures.common import (
    GATED_FFN,
    HEAD_NORMS,
    INTERLEAVED_ROPE,
    POST_NORMS,
    PRE_NORMS,
    SEPARATE_QKV,
)
from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.hparams import HParams
from localinfer.errors import UnsupportedError


def scaled_heads(config: JsonObject, hp: HParams) -> HParams:
    """Add the weights of the norms of heads: the scale of queries, and 1 for keys. Raises UnsupportedError unless the
    layers with a sliding window are those with a rotary embedding."""
    bases = [hp.rope.theta if sliding else 0 for sliding in hp.is_sliding]
    if len(config.get("layer_types", list)) != hp.n_layer or config.get("layer_rope_theta", list, bases) != bases:
        what = f"other than {hp.rope.theta:g} with a sliding window and 0 without one is not supported"
        raise config.error("layer_rope_theta", what, UnsupportedError)
    scales = config.positive_float("qk_scale_factor"), 1.0
    weights = {
        f"blk.{layer}.{kind}.weight": np.full(hp.head_dim, scale, np.float32)
        for layer in range(hp.n_layer)
        for kind, scale in zip(HEAD_NORMS, scales, strict=True)
    }
    return replace(hp, constant_tensors=weights)


MUSE_GLIMMER = Architecture(
    name="muse-glimmer",
    layer_tensors=(*PRE_NORMS, *POST_NORMS, *SEPARATE_QKV, "attn_gate", *GATED_FFN),
    shapes={"attn_gate": ("n_q", "n_embd")},
    reorder=INTERLEAVED_ROPE,
    ignored_tensors=r"model\.vision_(adapter|projection)\..*",
    name_map_architecture="gemma3",
    tensor_names={"self_attn.gate_proj": "attn_gate"},
    norm_offset=1.0,
    norm_offsets={"output_norm": 0.0},
    window_period=4,
    writes_window_flags=True,
    float_keys={"output_multiplier": "logit_scale", "final_logit_softcapping": "final_logit_softcapping"},
    read_hparams=scaled_heads,
    required_values={"attention_bias": False, "post_norm_eps": 1e-8},
    defaults={"output_multiplier": 26**-0.5, "final_logit_softcapping": 20.0, "qk_scale_factor": 3.87},
)
BY_CLASS = {"MuseGlimmerForConditionalGeneration": MUSE_GLIMMER}

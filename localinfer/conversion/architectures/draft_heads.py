"""EAGLE-3, DFlash and DSpark draft heads for speculative decoding."""

from dataclasses import replace

from localinfer.conversion.architecture import Architecture, keep_tensors
from localinfer.conversion.architectures import deepseek4
from localinfer.conversion.architectures.common import (
    GATED_FFN,
    HEAD_NORMS,
    INTERLEAVED_ROPE,
    POST_NORMS,
    PRE_NORMS,
    SEPARATE_QKV,
)
from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.draft_heads import dflash, dflash2, dspark, eagle3
from localinfer.conversion.hparams import HParams
from localinfer.gguf.source import Field

EAGLE3 = Architecture(
    name="eagle3",
    name_map_architecture="llama",
    is_draft_head=True,
    layer_tensors=("attn_norm", "attn_norm_2", *SEPARATE_QKV, "ffn_norm", *GATED_FFN),
    model_tensors=("fc",),
    optional_model_tensors=("token_embd", "output", "enc.output_norm"),
    shapes={
        "fc": ("n_embd", "n_features"),
        "enc.output_norm": ("n_features",),
        "output": ("n_draft", "n_embd"),
        "attn_q": ("n_q", "n_pair"),
        "attn_k": ("n_kv", "n_pair"),
        "attn_v": ("n_kv", "n_pair"),
    },
    tensor_names={
        "fc.weight": "fc.weight",
        "input_norm.weight": "enc.output_norm.weight",
        "norm.weight": "output_norm.weight",
        "embed_tokens.weight": "token_embd.weight",
        "hidden_norm": "attn_norm_2",
    },
    reorder=INTERLEAVED_ROPE,
    read_hparams=eagle3.add_sizes,
    metadata=eagle3.metadata,
)
DFLASH = Architecture(
    name="dflash",
    name_map_architecture="qwen3",
    is_draft_head=True,
    layer_tensors=(*PRE_NORMS, *SEPARATE_QKV, *HEAD_NORMS, *GATED_FFN),
    model_tensors=("fc", "enc.output_norm"),
    optional_layer_tensors=("attn_sinks",),
    optional_model_tensors=("token_embd", "output"),
    shapes={"fc": ("n_embd", "n_features"), "output": ("n_draft", "n_embd")},
    tensor_names={
        "fc.weight": "fc.weight",
        "hidden_norm.weight": "enc.output_norm.weight",
        "norm.weight": "output_norm.weight",
        "embed_tokens.weight": "token_embd.weight",
        "self_attn.sinks": "attn_sinks",
    },
    has_partial_rope=True,
    may_have_window=True,
    writes_window_flags=True,
    read_hparams=dflash.add_sizes,
    metadata=dflash.metadata,
    written_keys=(dflash.LOGIT_CAP,),
    defaults={"use_sliding_window": False},
)
CONVOLUTIONS = ("attn_conv_base", "attn_conv_proj", "ffn_conv_base", "ffn_conv_proj")
SELECTOR = ("selector_predecessor", "selector_successor", "selector_hidden")
DFLASH2 = replace(
    DFLASH,
    layer_tensors=(*DFLASH.layer_tensors, *CONVOLUTIONS),
    model_tensors=(*DFLASH.model_tensors, *SELECTOR),
    shapes={
        **DFLASH.shapes,
        **dict.fromkeys(CONVOLUTIONS[::2], ("n_sides", "n_taps", "n_embd")),
        **dict.fromkeys(CONVOLUTIONS[1::2], ("n_filters", "n_embd")),
        **dict.fromkeys(SELECTOR[:2], ("n_vocab", "n_rank")),
        SELECTOR[2]: ("n_rank", "n_embd"),
    },
    tensor_names={
        **DFLASH.tensor_names,
        "attention_conv.base_kernel": "attn_conv_base",
        "attention_conv.kernel_projection": "attn_conv_proj",
        "mlp_conv.base_kernel": "ffn_conv_base",
        "mlp_conv.kernel_projection": "ffn_conv_proj",
        "candidate_selector.predecessor_codebook": "selector_predecessor.weight",
        "candidate_selector.successor_codebook": "selector_successor.weight",
        "candidate_selector.hidden_projection.weight": "selector_hidden.weight",
    },
    no_weight_suffix=CONVOLUTIONS[::2],
    f32_tensors=CONVOLUTIONS[::2],
    read_hparams=dflash2.add_sizes,
    metadata=dflash2.metadata,
)
MARKOV_SHAPES = {
    "markov_w1": ("n_vocab", "n_rank"), "markov_w2": ("n_draft", "n_rank"), "conf_proj": ("one", "n_with_rank"),
}  # fmt: skip
MARKOV_NAMES = {
    "markov_head.markov_w1.weight": "markov_w1.weight",
    "markov_head.markov_w2.weight": "markov_w2.weight",
    "confidence_head.proj.weight": "conf_proj.weight",
    "confidence_head.proj.bias": "conf_proj.bias",
}
DSPARK = replace(
    DFLASH,
    model_tensors=(*DFLASH.model_tensors, "markov_w1", "markov_w2"),
    optional_model_tensors=(*DFLASH.optional_model_tensors, "conf_proj", "conf_proj.bias"),
    shapes={**DFLASH.shapes, **MARKOV_SHAPES},
    tensor_names={**DFLASH.tensor_names, **MARKOV_NAMES},
    adapted_keys=dspark.adapted_keys,
    read_hparams=dspark.add_sizes,
    metadata=dspark.metadata,
)
DSPARK_GEMMA4 = replace(
    DSPARK,
    name_map_architecture="gemma4",
    layer_tensors=(*PRE_NORMS, *POST_NORMS, "attn_q", "attn_k", "attn_output", *HEAD_NORMS, *GATED_FFN),
    optional_layer_tensors=("layer_output_scale",),
    activations=("gelu_pytorch_tanh",),
    adapted_keys=dspark.gemma4_keys,
    metadata=dspark.gemma4_metadata,
    required_values={
        "attention_k_eq_v": True, "attention_bias": False, "enable_moe_block": False, dflash.LOGIT_CAP: None,
    },
    defaults={
        **DSPARK.defaults,
        "hidden_act": "gelu_pytorch_tanh",
        "attention_k_eq_v": False,
        "rope_parameters": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
    },
)


def sizes_for_deepseek4(config: JsonObject, hp: HParams) -> HParams:
    """Return the hyperparameters with the sizes of the head and of its layers."""
    return dspark.add_sizes(config, deepseek4.hyperparameters(config, hp))


def metadata_for_deepseek4(config: JsonObject, hp: HParams) -> dict[str, Field]:
    """Return the metadata of a DFlash head and that of its layers. Its output is not several residual streams."""
    fields = deepseek4.metadata(config, hp) | dflash.metadata(config, hp)
    return {key: field for key, field in fields.items() if key != "embedding_length_out"}


DSPARK_DEEPSEEK4 = replace(
    deepseek4.DEEPSEEK4,
    name="dflash",
    name_map_architecture="deepseek4",
    is_draft_head=True,
    has_mtp=False,
    model_tensors=(*deepseek4.DEEPSEEK4.model_tensors, "fc", "enc.output_norm", "markov_w1", "markov_w2"),
    optional_model_tensors=("conf_proj", "conf_proj.bias"),
    shapes={**deepseek4.DEEPSEEK4.shapes, "fc": ("n_embd", "n_features"), **MARKOV_SHAPES},
    tensor_names={
        **deepseek4.DEEPSEEK4.tensor_names,
        **MARKOV_NAMES,
        "main_proj.weight": "fc.weight",
        "main_norm.weight": "enc.output_norm.weight",
    },
    ignored_tensors=r".*\.ffn\.gate\.bias_vl",  # of rows of images
    adapt_tensors=keep_tensors,
    adapted_keys=dspark.deepseek4_keys,
    read_hparams=sizes_for_deepseek4,
    metadata=metadata_for_deepseek4,
)
MUSE_GLIMMER_ASSISTANT = replace(
    DFLASH,
    tensor_names={
        **DFLASH.tensor_names,
        "encoder.fc.weight": "fc.weight",
        "encoder.output_norm_enc.weight": "enc.output_norm.weight",
    },
    defaults={"use_sliding_window": True},
)
QWEN3_DSPARK_CLASSES = (
    "Qwen3DSparkModel", "DSparkDraftModel", "DSparkSpeculator", "Lfm2DSparkDraftModel", "LingDSparkModel",
)  # fmt: skip
BY_CLASS = {
    dspark.DEEPSEEK4_HEAD: DSPARK_DEEPSEEK4,
    "Gemma4DSparkModel": DSPARK_GEMMA4,
    "MuseGlimmerAssistantModel": MUSE_GLIMMER_ASSISTANT,
    **dict.fromkeys(("DFlashDraftModel", "DFlash2DraftModel"), dflash.with_rope(DFLASH, DFLASH2)),
    **dict.fromkeys(QWEN3_DSPARK_CLASSES, dflash.with_rope(DSPARK)),
}

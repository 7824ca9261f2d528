"""Llama, and dense models with small differences: norms, biases, layers without rope."""

from dataclasses import replace

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures.common import (
    EXACT_GELU,
    FUSED_QKV,
    GATED_FFN,
    HEAD_NORMS,
    INTERLEAVED_ROPE,
    POST_NORMS,
    PRE_NORMS,
    RELU2,
    SEPARATE_QKV,
    UNGATED_FFN,
    biases,
)
from localinfer.conversion.metadata import architecture_metadata, attention_metadata, vision_metadata
from localinfer.conversion.tensor_formats import reorder

LLAMA = Architecture(
    name="llama",
    layer_tensors=(*PRE_NORMS, *SEPARATE_QKV, *GATED_FFN),
    optional_layer_tensors=biases(*SEPARATE_QKV, *GATED_FFN),
    reorder=INTERLEAVED_ROPE,
)
MISTRAL = replace(LLAMA, may_have_window=True)
MISTRAL3 = Architecture(
    name="mistral3",
    layer_tensors=LLAMA.layer_tensors,
    reorder=INTERLEAVED_ROPE,
    metadata=attention_metadata.attention_temperature,
    may_have_window=True,
)
SMOLLM3 = Architecture(
    name="smollm3",
    layer_tensors=LLAMA.layer_tensors,
    optional_layer_tensors=LLAMA.optional_layer_tensors,
    reorder=INTERLEAVED_ROPE,
    metadata=attention_metadata.require_no_rope_interval,
    may_have_window=True,
    defaults={"tie_word_embeddings": True, "use_sliding_window": False},
)
MINICPM = Architecture(
    name="minicpm",
    layer_tensors=LLAMA.layer_tensors,
    reorder=INTERLEAVED_ROPE,
    metadata=architecture_metadata.minicpm_scales,
    defaults={"tie_word_embeddings": True},
)
ARCEE = Architecture(
    name="arcee",
    layer_tensors=(*PRE_NORMS, *SEPARATE_QKV, *UNGATED_FFN),
    optional_layer_tensors=biases(*SEPARATE_QKV, *UNGATED_FFN),
    reorder=INTERLEAVED_ROPE,
    activations=RELU2,
)
APERTUS = Architecture(
    name="apertus",
    layer_tensors=(*PRE_NORMS, *SEPARATE_QKV, *HEAD_NORMS, *UNGATED_FFN),
    optional_layer_tensors=biases(*SEPARATE_QKV),
    layer_numbers={
        f"model.layers.{{}}.mlp.act_fn.{name}": f"xielu.{name}" for name in ("alpha_n", "alpha_p", "beta", "eps")
    },
    activations=("xielu",),
)
EXAONE = Architecture(
    name="exaone",
    layer_tensors=LLAMA.layer_tensors,
    optional_layer_tensors=LLAMA.optional_layer_tensors,
)
XVERSE = Architecture(
    name="xverse",
    layer_tensors=LLAMA.layer_tensors,
    reorder=INTERLEAVED_ROPE,
    metadata=architecture_metadata.meta_layout,
)
BAICHUAN = Architecture(
    name="baichuan",
    layer_tensors=LLAMA.layer_tensors,
    fused_sources=dict.fromkeys(("attn_q", "attn_k", "attn_v"), "attn_qkv"),
    reorder={"attn_q": reorder.first_queries, "attn_k": reorder.middle_keys, "attn_v": reorder.last_values},
    tensor_names={"self_attn.W_pack": "attn_qkv"},
    key_aliases={"max_position_embeddings": "model_max_length"},
    read_hparams=architecture_metadata.baichuan_hparams,
    metadata=architecture_metadata.meta_layout,
)
REFACT = Architecture(
    name="refact",
    layer_tensors=LLAMA.layer_tensors,
    fused_sources={"attn_k": "attn_kv", "attn_v": "attn_kv", "ffn_gate": "ffn_gate_up", "ffn_up": "ffn_gate_up"},
    shapes={"attn_kv": ("n_2kv", "n_embd"), "ffn_gate_up": ("n_gate_and_up", "n_embd")},
    reorder={
        "attn_k": reorder.first_half, "attn_v": reorder.second_half, "ffn_gate": reorder.first_half,
        "ffn_up": reorder.second_half,
    },
    tensor_names={"attn.q": "attn_q", "attn.kv": "attn_kv", "mlp.gate_up_proj": "ffn_gate_up"},
    ffn_multiplier=4,
    has_rope=False,
    read_hparams=architecture_metadata.refact_hparams,
    required_values={"multi_query": True},
    defaults={"multi_query": True},
)  # fmt: skip
OLMO = Architecture(
    name="olmo",
    layer_tensors=(*SEPARATE_QKV, *GATED_FFN),
    output_norm="",
    reorder=INTERLEAVED_ROPE,
    norm="layer",
    float_keys={"clip_qkv": "attention.clamp_kqv"},
    required_values={"attention_bias": False},
    defaults={"layer_norm_eps": 1e-5},
)
ORION = Architecture(
    name="orion",
    layer_tensors=(*LLAMA.layer_tensors, *biases(*PRE_NORMS)),
    model_tensors=("output_norm.bias",),
    norm="layer",
    key_aliases={"layer_norm_eps": "rms_norm_eps"},  # its norms are LayerNorms
    metadata=architecture_metadata.meta_layout,
    required_values={"attention_bias": False},
)
INTERNLM2 = Architecture(
    name="internlm2",
    layer_tensors=LLAMA.layer_tensors,
    optional_layer_tensors=biases(*SEPARATE_QKV),
    fused_sources=dict.fromkeys(("attn_q", "attn_k", "attn_v"), "attn_qkv")
    | dict.fromkeys(biases("attn_q", "attn_k", "attn_v"), "attn_qkv.bias"),
    reorder={
        "attn_q": reorder.gqa_queries,
        "attn_k": reorder.gqa_keys,
        "attn_v": reorder.gqa_values,
        "attn_q.bias": reorder.gqa_queries,
        "attn_k.bias": reorder.gqa_keys,
        "attn_v.bias": reorder.gqa_values,
    },
    tensor_names={"attention.wqkv": "attn_qkv"},
)
EXAONE4 = Architecture(
    name="exaone4",
    layer_tensors=(*POST_NORMS, *SEPARATE_QKV, *GATED_FFN, *HEAD_NORMS),
    window_period=4,
    writes_window_flags=True,
)
OLMO2 = Architecture(
    name="olmo2",
    layer_tensors=(*POST_NORMS, *SEPARATE_QKV, *GATED_FFN, *HEAD_NORMS),
    optional_layer_tensors=biases(*SEPARATE_QKV),
    shapes={"attn_q_norm": ("n_q",), "attn_k_norm": ("n_kv",)},
    window_period=4,
    writes_window_flags=True,
    has_window_rope=True,
)
ERNIE4_5 = Architecture(
    name="ernie4_5", layer_tensors=LLAMA.layer_tensors, optional_layer_tensors=biases(*SEPARATE_QKV, *GATED_FFN)
)
PADDLEOCR = replace(
    ERNIE4_5, name="paddleocr", metadata=vision_metadata.mrope, ignored_tensors=r"(model\.projector|mlp_AR)\..*"
)
HUNYUAN_DENSE = Architecture(
    name="hunyuan-dense",
    layer_tensors=(*LLAMA.layer_tensors, *HEAD_NORMS),
    optional_layer_tensors=biases(*SEPARATE_QKV),
    required_values={"use_cla": False},
)
HUNYUAN_VL = replace(
    HUNYUAN_DENSE, name="hunyuan_vl", metadata=vision_metadata.mrope, ignored_tensors=r"vit\..*"
)
MAINCODER = Architecture(
    name="maincoder",
    layer_tensors=(*LLAMA.layer_tensors, *HEAD_NORMS),
    required_values={"attention_bias": False},
)
PANGU_EMBEDDED = Architecture(name="pangu-embedded", layer_tensors=(*LLAMA.layer_tensors, *biases(*SEPARATE_QKV)))
SPARK2_5 = Architecture(
    name="spark2_5",
    layer_tensors=(*PRE_NORMS, *FUSED_QKV, "attn_gate", *GATED_FFN),
    shapes={"attn_gate": ("n_head", "n_embd")},
    name_map_architecture="llama",
    tensor_names={"self_attn.q_k_v_proj": "attn_qkv", "self_attn.g_proj": "attn_gate"},
    activations=EXACT_GELU,
    has_partial_rope=True,
    has_window_rope=True,
    window_period=0,
    writes_window_flags=True,
    metadata=attention_metadata.window_rope_size,
    required_values={"gate_attn_act_mode": "sigmoid", "headwise_attn_output_gate": True},
)
SEED_OSS = Architecture(
    name="seed_oss",
    layer_tensors=("attn_norm", "post_attention_norm", *SEPARATE_QKV, *GATED_FFN),
    optional_layer_tensors=LLAMA.optional_layer_tensors,
)
BY_CLASS = {
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": MISTRAL,
    "InternLM3ForCausalLM": LLAMA,
    "Mistral3ForConditionalGeneration": MISTRAL3,
    "Ministral3ForCausalLM": MISTRAL3,
    "SmolLM3ForCausalLM": SMOLLM3,
    "MiniCPMForCausalLM": MINICPM,
    "ArceeForCausalLM": ARCEE,
    "ApertusForCausalLM": APERTUS,
    "ExaoneForCausalLM": EXAONE,
    "XverseForCausalLM": XVERSE,
    "OrionForCausalLM": ORION,
    "BaichuanForCausalLM": BAICHUAN,
    "BaiChuanForCausalLM": BAICHUAN,
    "GPTRefactForCausalLM": REFACT,
    "OlmoForCausalLM": OLMO,
    "InternLM2ForCausalLM": INTERNLM2,
    "Exaone4ForCausalLM": EXAONE4,
    "Exaone4_5_ForConditionalGeneration": EXAONE4,
    "Olmo2ForCausalLM": OLMO2,
    "Olmo3ForCausalLM": OLMO2,
    "Ernie4_5ForCausalLM": ERNIE4_5,
    "Ernie4_5_ForCausalLM": ERNIE4_5,
    "PaddleOCRVLForConditionalGeneration": PADDLEOCR,
    "HunYuanDenseV1ForCausalLM": HUNYUAN_DENSE,
    "HunYuanVLForConditionalGeneration": HUNYUAN_VL,
    "MaincoderForCausalLM": MAINCODER,
    "PanguEmbeddedForCausalLM": PANGU_EMBEDDED,
    "Spark2_5ForCausalLM": SPARK2_5,
    "SeedOssForCausalLM": SEED_OSS,
}

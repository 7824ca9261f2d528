"""DeepSeek and other models with multi-head latent attention (MLA), and DeepSeek-OCR, which has none."""

from dataclasses import replace
from functools import partial

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures.common import (
    EXPERTS,
    GATED_FFN,
    INTERLEAVED_ROPE,
    PRE_NORMS,
    SEPARATE_QKV,
    SHARED_EXPERTS,
)
from localinfer.conversion.architectures.experts import DOTS1
from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.hparams import HParams, LayerOverrides
from localinfer.conversion.metadata import attention_metadata, expert_metadata
from localinfer.conversion.tensor_formats import reorder
from localinfer.gguf.source import Field
from localinfer.graph.properties.hyperparameters import DEFAULT_MAXIMUM

MLA = ("attn_kv_a_mqa", "attn_kv_a_norm", "attn_k_b", "attn_v_b", "attn_output")
WHOLE_MLA = ("attn_kv_a_mqa", "attn_kv_a_norm", "attn_kv_b", "attn_output")  # keys and values are one matrix
NARROW_QUERIES = ("attn_q_a", "attn_q_a_norm", "attn_q_b")
DEEPSEEK2 = Architecture(
    name="deepseek2",
    layer_tensors=(*PRE_NORMS, *MLA),
    optional_layer_tensors=("attn_q", *NARROW_QUERIES),
    moe_tensors=(*EXPERTS, *SHARED_EXPERTS),
    dense_tensors=GATED_FFN,
    shapes={"attn_q": ("n_q", "n_embd"), "attn_output": ("n_embd", "n_values")},
    fused_sources=dict.fromkeys(("attn_k_b", "attn_v_b"), "attn_kv_b"),
    reorder={"attn_k_b": reorder.latent_keys, "attn_v_b": reorder.latent_values},
    has_partial_rope=True,
    has_mtp=True,
    key_aliases={"head_dim": "qk_rope_head_dim"},
    float_keys=DOTS1.float_keys,
    int_keys={"first_k_dense_replace": "leading_dense_block_count", "n_shared_experts": "expert_shared_count"},
    read_hparams=attention_metadata.mla_hparams,
    metadata=attention_metadata.mla,
    required_values={"rope_interleave": True, "moe_layer_freq": 1},
    defaults={"scoring_func": "softmax"},
)
DEEPSEEK3 = replace(
    DEEPSEEK2,
    moe_tensors=(*DEEPSEEK2.moe_tensors, "exp_probs_b.bias"),
    tensor_names=DOTS1.tensor_names,
    required_values={**DEEPSEEK2.required_values, "topk_method": "noaux_tc", "scoring_func": "sigmoid"},
    defaults={"scoring_func": "sigmoid"},
)
INDEXER = ("indexer.attn_q_b", "indexer.attn_k", "indexer.k_norm", "indexer.k_norm.bias", "indexer.proj")


def sparse_hparams(config: JsonObject, hp: HParams) -> HParams:
    """Add the sizes of the indexer of sparse attention."""
    latent = attention_metadata.mla_hparams(config, hp)
    return replace(latent, sizes={**latent.sizes, **index_sizes(config)})


def index_sizes(config: JsonObject) -> dict[str, int]:
    """Return the sizes of the indexer."""
    names = {"index_heads": "index_n_heads", "index_size": "index_head_dim", "index_top_k": "index_topk"}
    sizes = {name: config.positive_int(key, DEFAULT_MAXIMUM) for name, key in names.items()}
    return sizes | {"n_index": sizes["index_heads"] * sizes["index_size"]}


def sparse_metadata(config: JsonObject, hp: HParams) -> dict[str, Field]:
    """Return the metadata of sparse latent attention. Without a list of the layers with an indexer, all have one."""
    names = {"head_count": "index_heads", "key_length": "index_size", "top_k": "index_top_k"}
    sizes = {f"attention.indexer.{key}": Field.uint32(hp.sizes[name]) for key, name in names.items()}
    kinds = config.get("indexer_types", list, [])
    types = {"attention.indexer.types": Field.flags([kind == "full" for kind in kinds])} if kinds else {}
    return attention_metadata.mla(config, hp) | sizes | types


def sparse_layers(config: JsonObject, hp: HParams) -> tuple[LayerOverrides, ...]:
    """Return which layers have no indexer, because they attend to the positions that an earlier one chose. MTP layers
    may have one."""
    kinds = config.get("indexer_types", list, ["full"] * hp.n_layer)
    if len(kinds) != hp.n_layer or kinds[0] != "full" or not {"full", "shared"}.issuperset(map(str, kinds)):
        raise config.error("indexer_types", f"must be full, and then full or shared, {hp.n_layer} in all")
    shared = LayerOverrides({}, frozenset(INDEXER))
    return (*(LayerOverrides({}) if kind == "full" else shared for kind in kinds), *[shared] * hp.n_mtp_layers)


DEEPSEEK32 = replace(
    DEEPSEEK3,
    name="deepseek32",
    name_map_architecture="deepseek2",
    layer_tensors=(*DEEPSEEK3.layer_tensors, *NARROW_QUERIES, *INDEXER),
    optional_layer_tensors=(),
    shapes={
        **DEEPSEEK3.shapes,
        "indexer.attn_q_b": ("n_index", "q_rank"),
        "indexer.attn_k": ("index_size", "n_embd"),
        "indexer.k_norm": ("index_size",),
        "indexer.proj": ("index_heads", "n_embd"),
    },
    tensor_names={
        **DEEPSEEK3.tensor_names,
        "self_attn.indexer.wq_b": "indexer.attn_q_b",
        "self_attn.indexer.wk": "indexer.attn_k",
        "self_attn.indexer.k_norm": "indexer.k_norm",
        "self_attn.indexer.weights_proj": "indexer.proj",
    },
    read_hparams=sparse_hparams,
    metadata=sparse_metadata,
)
GLM_DSA = replace(DEEPSEEK32, name="glm-dsa", layer_overrides=sparse_layers)
MISTRAL4 = replace(
    DEEPSEEK2,
    name="mistral4",
    moe_tensors=("ffn_gate_inp", "ffn_gate_up_exps", "ffn_down_exps", *SHARED_EXPERTS),
    shapes={**DEEPSEEK2.shapes, "ffn_gate_up_exps": ("n_expert", "n_gate_and_up_expert", "n_embd")},
    metadata=attention_metadata.mla_with_temperature,
)
DEEPSEEK2_OCR = Architecture(
    name="deepseek2-ocr",
    layer_tensors=(*PRE_NORMS, *SEPARATE_QKV),
    moe_tensors=(*EXPERTS, *SHARED_EXPERTS),
    dense_tensors=GATED_FFN,
    ignored_tensors=r"model\.(sam_model|vision_model|qwen2_model|projector|image_newline|view_seperator)\b.*",
    float_keys=DOTS1.float_keys,
    int_keys=DOTS1.int_keys,
    metadata=partial(expert_metadata.experts, usually_normed=False),
    required_values={"use_mla": False, "topk_method": "greedy", "moe_layer_freq": 1},
    defaults={"rms_norm_eps": 1e-6, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1},
)
DEEPSEEK = Architecture(
    name="deepseek",
    layer_tensors=DEEPSEEK2_OCR.layer_tensors,
    moe_tensors=DEEPSEEK2_OCR.moe_tensors,
    dense_tensors=DEEPSEEK2_OCR.dense_tensors,
    reorder=INTERLEAVED_ROPE,
    int_keys=DEEPSEEK2.int_keys,
    metadata=expert_metadata.deepseek_experts,
    required_values={"norm_topk_prob": False, "scoring_func": "softmax", "moe_layer_freq": 1, "attention_bias": False},
)
BY_CLASS = {
    "DeepseekForCausalLM": DEEPSEEK,
    "DeepseekV2ForCausalLM": DEEPSEEK2,
    "DeepseekV3ForCausalLM": DEEPSEEK3,
    "DeepseekV32ForCausalLM": DEEPSEEK32,
    "GlmMoeDsaForCausalLM": GLM_DSA,
    "DeepseekOCRForCausalLM": DEEPSEEK2_OCR,
    "DeepseekOCR2ForCausalLM": DEEPSEEK2_OCR,
    "KimiVLForConditionalGeneration": DEEPSEEK3,
    "KimiK25ForConditionalGeneration": DEEPSEEK3,
    "Glm4MoeLiteForCausalLM": DEEPSEEK3,
    "Mistral4ForCausalLM": MISTRAL4,
}

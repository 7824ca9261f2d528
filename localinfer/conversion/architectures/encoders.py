"""BERT-like encoders for embeddings and reranking."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from localinfer.conversion.architecture import Architecture, no_metadata
from localinfer.conversion.architectures.common import (
    EXACT_GELU,
    FUSED_QKV,
    GATED_FFN,
    INTERLEAVED_ROPE,
    PRE_NORMS,
    SEPARATE_QKV,
    UNGATED_FFN,
    biases,
)
from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.metadata import architecture_metadata, attention_metadata, expert_metadata
from localinfer.conversion.tensor_formats import reorder

EMBEDDING_TENSORS = (
    "token_types",
    "token_embd_norm",
    "token_embd_norm.bias",
)  # BERT's tensors outside of layers
BERT_NORMS = ("attn_output_norm", "layer_output_norm")
BERT = Architecture(
    name="bert",
    layer_tensors=(
        *SEPARATE_QKV,
        *biases(*SEPARATE_QKV),
        *UNGATED_FFN,
        *biases(*UNGATED_FFN),
        *BERT_NORMS,
        *biases(*BERT_NORMS),
    ),
    model_tensors=(*EMBEDDING_TENSORS, "position_embd"),
    is_encoder=True,
    tensor_prefix="bert.",
    ignored_tensors=r"embeddings\.position_ids|pooler\.dense\.(weight|bias)|cls\..*",  # used in training only
    norm="layer",
    activations=EXACT_GELU,
    has_rope=False,
    required_values={"position_embedding_type": "absolute", "is_decoder": False},
    defaults={"tie_word_embeddings": True, "layer_norm_eps": 1e-12, "hidden_act": "gelu", "type_vocab_size": 2},
)
DISTILBERT = replace(  # without token types
    BERT,
    model_tensors=("token_embd_norm", "token_embd_norm.bias", "position_embd"),
    tensor_prefix="distilbert.",
    ignored_tensors=r"vocab_(transform|layer_norm|projector)\..*",
    key_aliases={
        "hidden_size": "dim", "intermediate_size": "hidden_dim", "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads", "hidden_act": "activation",
    },
    required_values={},
    defaults={**BERT.defaults, "type_vocab_size": 1},
)  # fmt: skip
CLASSIFIER = ("cls", "cls.bias", "cls.output", "cls.output.bias")
BERT_RERANKER = replace(
    BERT,
    model_tensors=(*BERT.model_tensors, *CLASSIFIER),
    ignored_tensors=r"embeddings\.position_ids",
    tensor_names={
        "pooler.dense.weight": "cls.weight", "pooler.dense.bias": "cls.bias",
        "classifier.weight": "cls.output.weight", "classifier.bias": "cls.output.bias",
    },
)  # fmt: skip
ROBERTA = replace(
    BERT,
    tensor_prefix="roberta.",
    ignored_tensors=rf"{BERT.ignored_tensors}|lm_head\..*",
    reorder={"position_embd": reorder.drop_position_offset},
)
ROBERTA_RERANKER = replace(ROBERTA, model_tensors=(*BERT.model_tensors, *CLASSIFIER))
JINA_RERANKER = replace(  # jina-reranker-v2: an XLM-R whose queries, keys and values are one matrix
    ROBERTA_RERANKER,
    layer_tensors=(
        *FUSED_QKV, *UNGATED_FFN, *BERT_NORMS, *biases(*FUSED_QKV, *UNGATED_FFN, *BERT_NORMS),
    ),
)  # fmt: skip
NOMIC_BERT = Architecture(
    name="nomic-bert",
    layer_tensors=(*FUSED_QKV, *GATED_FFN, *BERT_NORMS, *biases(*BERT_NORMS)),
    optional_layer_tensors=biases(*FUSED_QKV, *GATED_FFN),
    model_tensors=EMBEDDING_TENSORS,
    is_encoder=True,
    ignored_tensors=r"pooler\..*|cls\..*",
    norm="layer",
    activations=("swiglu", "silu"),
    key_aliases={"max_position_embeddings": "max_trained_positions"},
    required_values={
        "prenorm": False, "causal": False, "parallel_block": False, "use_rms_norm": False,
        "rotary_emb_interleaved": False, "rotary_scaling_factor": None, "num_experts": 0,
    },
    defaults={"tie_word_embeddings": True, "layer_norm_eps": 1e-12, "type_vocab_size": 2},
)  # fmt: skip
JINA_BERT_V2 = replace(
    BERT,
    name="jina-bert-v2",
    layer_tensors=(
        *SEPARATE_QKV, *biases(*SEPARATE_QKV), *UNGATED_FFN, "ffn_down.bias", *BERT_NORMS, *biases(*BERT_NORMS),
    ),
    model_tensors=EMBEDDING_TENSORS,
    shapes={"ffn_up": ("n_gate_and_up", "n_embd")},
    required_values={"position_embedding_type": "alibi", "feed_forward_type": "geglu"},
)  # fmt: skip
NOMIC_BERT_MOE = replace(  # without the bias of its experts, for which GGUF has no tensor
    NOMIC_BERT,
    name="nomic-bert-moe",
    layer_tensors=(*FUSED_QKV, *BERT_NORMS, *biases(*FUSED_QKV, *BERT_NORMS)),
    optional_layer_tensors=(),
    moe_tensors=("ffn_gate_inp", "ffn_up_exps", "ffn_down_exps"),
    dense_tensors=(*UNGATED_FFN, *biases(*UNGATED_FFN)),
    ignored_tensors=rf"{NOMIC_BERT.ignored_tensors}|.*\.mlp\.experts\.bias",
    shapes=dict.fromkeys(("ffn_up_exps", "ffn_down_exps"), ("n_ff_all_experts", "n_embd")),
    final_shapes={
        "ffn_up_exps": ("n_expert", "n_ff_expert", "n_embd"), "ffn_down_exps": ("n_expert", "n_embd", "n_ff_expert"),
    },
    reorder={"ffn_up_exps": reorder.split_experts, "ffn_down_exps": reorder.split_and_transpose_experts},
    activations=EXACT_GELU,
    key_aliases={**NOMIC_BERT.key_aliases, "num_experts_per_tok": "moe_top_k"},
    read_hparams=expert_metadata.nomic_hparams,
    metadata=expert_metadata.nomic_experts,
    required_values={key: value for key, value in NOMIC_BERT.required_values.items() if key != "num_experts"}
    | {"moe_every_n_layers": 2, "moe_normalize_expert_weights": False},
    defaults={**NOMIC_BERT.defaults, "first_k_dense_replace": 0},
)  # fmt: skip
NEO_BERT = Architecture(
    name="neo-bert",
    layer_tensors=(*PRE_NORMS, *FUSED_QKV, *UNGATED_FFN),
    model_tensors=("enc.output_norm",),
    shapes={"ffn_up": ("n_gate_and_up", "n_embd")},
    reorder={"attn_qkv": reorder.group_qkv},
    is_encoder=True,
    tensor_prefix="model.",
    ignored_tensors=r"decoder\..*|freqs_cis",
    activations=("SwiGLU", "swiglu"),
    key_aliases={"max_position_embeddings": "max_length"},
    read_hparams=architecture_metadata.neo_bert_hparams,
    metadata=architecture_metadata.neo_bert,
    required_values={"rms_norm": True, "rope": True},
    defaults={"rms_norm_eps": 1e-6},
)
JINA_BERT_V3 = Architecture(  # without its LoRA adapters
    name="jina-bert-v3",
    layer_tensors=(*FUSED_QKV, *UNGATED_FFN, *BERT_NORMS, *biases(*FUSED_QKV, *UNGATED_FFN, *BERT_NORMS)),
    model_tensors=EMBEDDING_TENSORS,
    is_encoder=True,
    tensor_prefix="roberta.",
    ignored_tensors=r".*\.lora_[AB]|pooler\..*|lm_head\..*",
    tensor_names={
        f"{old}.parametrizations.weight.original": f"{new}.weight"
        for old, new in {
            "embeddings.word_embeddings": "token_embd", "embeddings.token_type_embeddings": "token_types",
            "mixer.Wqkv": "attn_qkv", "mixer.out_proj": "attn_output", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down",
        }.items()
    },
    norm="layer",
    activations=EXACT_GELU,
    reorder={"position_embd": reorder.drop_position_offset},  # positions are counted as RoBERTa's
    required_values={"position_embedding_type": "rotary"},
    defaults={"tie_word_embeddings": True, "layer_norm_eps": 1e-5, "hidden_act": "gelu", "type_vocab_size": 1},
)  # fmt: skip
GTE = replace(
    BERT,
    name="gte",
    name_map_architecture="bert",
    layer_tensors=(
        *FUSED_QKV, *GATED_FFN, "ffn_down.bias", *BERT_NORMS, *biases(*FUSED_QKV, *BERT_NORMS),
    ),
    model_tensors=("token_embd_norm", "token_embd_norm.bias"),
    optional_model_tensors=("token_types",),
    shapes={"ffn_up_gate": ("n_gate_and_up", "n_embd")},
    fused_sources=dict.fromkeys(("ffn_gate", "ffn_up"), "ffn_up_gate"),
    reorder={"ffn_up": reorder.first_half, "ffn_gate": reorder.second_half},
    tensor_prefix="new.",
    ignored_tensors=r"(pooler|classifier|lm_head)\..*",
    tensor_names={
        "attention.qkv_proj": "attn_qkv", "attention.o_proj": "attn_output", "attn_ln": "attn_output_norm",
        "mlp.up_gate_proj": "ffn_up_gate", "mlp.down_proj": "ffn_down", "mlp_ln": "layer_output_norm",
    },
    has_rope=True,
    required_values={"position_embedding_type": "rope", "layer_norm_type": "layer_norm", "logn_attention_scale": False},
    defaults={**BERT.defaults, "type_vocab_size": 1},
)  # fmt: skip
GTE_RERANKER = replace(
    GTE,
    model_tensors=(*GTE.model_tensors, *CLASSIFIER),
    ignored_tensors="",
    tensor_names={**GTE.tensor_names, **BERT_RERANKER.tensor_names},
)
GTE_OF_TRANSFORMERS, GTE_RERANKER_OF_TRANSFORMERS = (
    replace(each, tensor_prefix="gte.") for each in (GTE, GTE_RERANKER)
)
EUROBERT = Architecture(
    name="eurobert",
    layer_tensors=(*PRE_NORMS, *SEPARATE_QKV, *GATED_FFN),
    model_tensors=("output_norm",),
    is_encoder=True,
    tensor_prefix="model.",
    ignored_tensors=r"lm_head\..*",
    metadata=attention_metadata.rope_without_scaling,
    required_values={"attention_bias": False, "mlp_bias": False},
)
LLAMA_EMBED = replace(EUROBERT, name="llama-embed", reorder=INTERLEAVED_ROPE, metadata=no_metadata)
MODERN_BERT = Architecture(
    name="modern-bert",
    layer_tensors=("attn_qkv", "attn_output", "ffn_norm", *UNGATED_FFN),
    not_first_layer_tensors=("attn_norm",),
    model_tensors=("token_embd_norm", "output_norm"),
    shapes={"ffn_up": ("n_gate_and_up", "n_embd")},
    is_encoder=True,
    tensor_prefix="model.",
    ignored_tensors=r"(head|decoder)\..*",
    norm="layer",
    activations=(*EXACT_GELU, "silu"),
    window_period=3,
    first_is_full=True,
    writes_window_flags=True,
    has_window_rope=True,
    metadata=architecture_metadata.modern_bert,
    required_values={"attention_bias": False, "mlp_bias": False, "norm_bias": False},
    defaults={"tie_word_embeddings": True, "layer_norm_eps": 1e-5, "hidden_act": "gelu"},
)
MODERN_BERT_RERANKER = replace(
    MODERN_BERT,
    model_tensors=(*MODERN_BERT.model_tensors, "cls", "cls.norm", "cls.output", "cls.output.bias"),
    ignored_tensors=r"decoder\..*",
    tensor_names={"classifier.weight": "cls.output.weight", "classifier.bias": "cls.output.bias"},
    required_values={**MODERN_BERT.required_values, "classifier_bias": False, "classifier_activation": "gelu"},
)


def nomic_bert(config: JsonObject) -> Architecture:
    """Return the architecture; the second version has experts."""
    return NOMIC_BERT_MOE if config.get("moe_every_n_layers", int, 0) else NOMIC_BERT


def roberta(config: JsonObject) -> Architecture:
    """Return the architecture: Jina Embeddings v3 has the class of RoBERTa."""
    return JINA_BERT_V3 if "lora_adaptations" in config.values else ROBERTA


def xlm_roberta_reranker(config: JsonObject) -> Architecture:
    """Return the architecture: jina-reranker-v2, which has a class of its own of the same name, says how it attends."""
    return JINA_RERANKER if "use_flash_attn" in config.values else ROBERTA_RERANKER


BY_CLASS: Mapping[str, Architecture | Callable[[JsonObject], Architecture]] = {
    "BertModel": BERT,
    "BertForMaskedLM": BERT,
    "BertForPreTraining": BERT,
    "BertForSequenceClassification": BERT_RERANKER,
    "DistilBertModel": DISTILBERT,
    "DistilBertForMaskedLM": DISTILBERT,
    "RobertaModel": ROBERTA,
    "RobertaForMaskedLM": ROBERTA,
    "CamembertModel": ROBERTA,
    "CamembertForMaskedLM": ROBERTA,
    "XLMRobertaModel": roberta,
    "JinaBertModel": JINA_BERT_V2,
    "JinaBertForMaskedLM": JINA_BERT_V2,
    "NewModel": GTE,
    "NewForMaskedLM": GTE,
    "NewForSequenceClassification": GTE_RERANKER,
    "GteModel": GTE_OF_TRANSFORMERS,
    "GteForMaskedLM": GTE_OF_TRANSFORMERS,
    "GteForSequenceClassification": GTE_RERANKER_OF_TRANSFORMERS,
    "NeoBERT": NEO_BERT,
    "NeoBERTLMHead": NEO_BERT,
    "EuroBertModel": EUROBERT,
    "EuroBertForMaskedLM": EUROBERT,
    "LlamaBidirectionalModel": LLAMA_EMBED,
    "XLMRobertaForMaskedLM": ROBERTA,
    "RobertaForSequenceClassification": ROBERTA_RERANKER,
    "CamembertForSequenceClassification": ROBERTA_RERANKER,
    "XLMRobertaForSequenceClassification": xlm_roberta_reranker,
    "NomicBertModel": nomic_bert,
    "ModernBertModel": MODERN_BERT,
    "ModernBertForMaskedLM": MODERN_BERT,
    "ModernBertForSequenceClassification": MODERN_BERT_RERANKER,
}

"""BERT and its kin: encoders, for embeddings and for ranking."""

from dataclasses import replace

from localinfer.checkpoint import own_keys
from localinfer.checkpoint.architecture import Architecture
from localinfer.checkpoint.architectures.common import APART, EXACT_GELU, FUSED, GATED, PLAIN, biases
from localinfer.checkpoint.stored import reorder

ENDS = ("token_types", "token_embd_norm", "token_embd_norm.bias")  # of BERT's kind: what is outside of blocks
BERT_NORMS = ("attn_output_norm", "layer_output_norm")
BERT = Architecture(
    name="bert",
    block=(*APART, *biases(*APART), *PLAIN, *biases(*PLAIN), *BERT_NORMS, *biases(*BERT_NORMS)),
    model=(*ENDS, "position_embd"),
    encoder=True,
    prefix="bert.",
    left_out=r"embeddings\.position_ids|pooler\.dense\.(weight|bias)|cls\..*",  # what was for training only
    norm="layer",
    activation=EXACT_GELU,
    turns=False,
    fixed={"position_embedding_type": "absolute", "is_decoder": False},
    defaults={"tie_word_embeddings": True, "layer_norm_eps": 1e-12, "hidden_act": "gelu", "type_vocab_size": 2},
)
CLASSIFIER = ("cls", "cls.bias", "cls.output", "cls.output.bias")
BERT_RANKS = replace(
    BERT,
    model=(*BERT.model, *CLASSIFIER),
    left_out=r"embeddings\.position_ids",
    names={
        "pooler.dense.weight": "cls.weight", "pooler.dense.bias": "cls.bias",
        "classifier.weight": "cls.output.weight", "classifier.bias": "cls.output.bias",
    },
)  # fmt: skip
ROBERTA = replace(
    BERT,
    prefix="roberta.",
    left_out=rf"{BERT.left_out}|lm_head\..*",
    reorder={"position_embd": reorder.from_first_position},
)
ROBERTA_RANKS = replace(ROBERTA, model=(*BERT.model, *CLASSIFIER))
NOMIC_BERT = Architecture(
    name="nomic-bert",
    block=(*FUSED, *GATED, *BERT_NORMS, *biases(*BERT_NORMS)),
    optional=biases(*FUSED, *GATED),
    model=ENDS,
    encoder=True,
    left_out=r"pooler\..*|cls\..*",
    norm="layer",
    activation=("swiglu", "silu"),
    spellings={"max_position_embeddings": "max_trained_positions"},
    fixed={
        "prenorm": False, "causal": False, "parallel_block": False, "use_rms_norm": False,
        "rotary_emb_interleaved": False, "rotary_scaling_factor": None, "num_experts": 0,
    },
    defaults={"tie_word_embeddings": True, "layer_norm_eps": 1e-12, "type_vocab_size": 2},
)  # fmt: skip
MODERN_BERT = Architecture(
    name="modern-bert",
    block=("attn_qkv", "attn_output", "ffn_norm", *PLAIN),
    not_first=("attn_norm",),
    model=("token_embd_norm", "output_norm"),
    sizes={"ffn_up": ("n_gate_and_up", "n_embd")},
    encoder=True,
    prefix="model.",
    left_out=r"(head|decoder)\..*",
    norm="layer",
    activation=(*EXACT_GELU, "silu"),
    period=3,
    first_of_period=True,
    every_window=True,
    window_rope=True,
    own_keys=own_keys.gate_of_modern_bert,
    fixed={"attention_bias": False, "mlp_bias": False, "norm_bias": False},
    defaults={"tie_word_embeddings": True, "layer_norm_eps": 1e-5, "hidden_act": "gelu"},
)
MODERN_BERT_RANKS = replace(
    MODERN_BERT,
    model=(*MODERN_BERT.model, "cls", "cls.norm", "cls.output", "cls.output.bias"),
    left_out=r"decoder\..*",
    names={"classifier.weight": "cls.output.weight", "classifier.bias": "cls.output.bias"},
    fixed={**MODERN_BERT.fixed, "classifier_bias": False, "classifier_activation": "gelu"},
)
BY_CLASS = {
    "BertModel": BERT,
    "BertForMaskedLM": BERT,
    "BertForPreTraining": BERT,
    "BertForSequenceClassification": BERT_RANKS,
    "RobertaModel": ROBERTA,
    "RobertaForMaskedLM": ROBERTA,
    "XLMRobertaModel": ROBERTA,
    "XLMRobertaForMaskedLM": ROBERTA,
    "RobertaForSequenceClassification": ROBERTA_RANKS,
    "XLMRobertaForSequenceClassification": ROBERTA_RANKS,
    "NomicBertModel": NOMIC_BERT,
    "ModernBertModel": MODERN_BERT,
    "ModernBertForMaskedLM": MODERN_BERT,
    "ModernBertForSequenceClassification": MODERN_BERT_RANKS,
}

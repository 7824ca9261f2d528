"""T5 and its relatives: an encoder whose scores have a bias for each distance of a key, with a decoder or alone."""

from dataclasses import replace

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures.common import PRE_NORMS, UNGATED_FFN
from localinfer.conversion.metadata import architecture_metadata

EMBEDDINGS = ("shared", "encoder.embed_tokens", "decoder.embed_tokens")  # the same matrix
SELF_ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_o")
LAYER = (*PRE_NORMS, *SELF_ATTENTION, *UNGATED_FFN)
T5_ENCODER = Architecture(
    name="t5encoder",
    layer_group="enc.blk",
    layer_tensors=LAYER,
    first_layer_tensors=("attn_rel_b",),
    optional_layer_tensors=("ffn_gate",),
    output_norm="",
    model_tensors=("enc.output_norm",),
    is_encoder=True,
    tensor_names={f"{name}.weight": "token_embd.weight" for name in EMBEDDINGS},
    activations=("relu", "gated-gelu"),
    has_rope=False,
    key_aliases={
        "hidden_size": "d_model", "intermediate_size": "d_ff", "num_attention_heads": "num_heads", "head_dim": "d_kv",
        "hidden_act": "feed_forward_proj",
    },
    read_hparams=architecture_metadata.t5_hparams,
    metadata=architecture_metadata.t5_encoder,
    required_values={"relative_attention_max_distance": 128},
    defaults={
        "max_position_embeddings": 512, "tie_word_embeddings": True, "rms_norm_eps": 1e-6,
        "relative_attention_num_buckets": 32,
    },
)  # fmt: skip
T5 = replace(
    T5_ENCODER,
    name="t5",
    decoder_tensors=(*LAYER, "cross_attn_norm", *(f"cross_{name}" for name in SELF_ATTENTION)),
    model_tensors=("enc.output_norm", "dec.output_norm"),
    is_encoder=False,
    optional_model_tensors=("dec.blk.0.cross_attn_rel_b",),  # never used, but T5 1.0 has it
    shapes={"dec.blk.0.cross_attn_rel_b": ("n_buckets", "n_head")},
    fused_sources={"output": "token_embd"},
    metadata=architecture_metadata.t5,
    defaults={**T5_ENCODER.defaults, "decoder_start_token_id": 0},
)
MT5 = replace(T5, defaults={**T5.defaults, "scale_decoder_outputs": False})
BY_CLASS = {
    "T5WithLMHeadModel": T5,
    "T5ForConditionalGeneration": T5,
    "MT5ForConditionalGeneration": MT5,
    "UMT5ForConditionalGeneration": T5,
    "UMT5Model": T5,
    "T5EncoderModel": T5_ENCODER,
    "MT5EncoderModel": T5_ENCODER,
    "UMT5EncoderModel": T5_ENCODER,
}

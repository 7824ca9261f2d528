"""Conversion of MiniCPM3: latent attention as in PLM, with queries of a low rank, and the scales of MiniCPM."""

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures.common import GATED_FFN, PRE_NORMS, biases
from localinfer.conversion.architectures.deepseek import NARROW_QUERIES, WHOLE_MLA
from localinfer.conversion.metadata import architecture_metadata, attention_metadata

MINICPM3 = Architecture(
    name="minicpm3",
    layer_tensors=(*PRE_NORMS, *NARROW_QUERIES, *WHOLE_MLA, *GATED_FFN),
    optional_layer_tensors=biases("attn_q_a", "attn_kv_a_mqa", "attn_output", *GATED_FFN),
    shapes={"attn_output": ("n_embd", "n_values")},
    has_partial_rope=True,
    key_aliases={"head_dim": "qk_rope_head_dim"},
    read_hparams=attention_metadata.expanded_mla_hparams,
    metadata=architecture_metadata.minicpm3,
    defaults={"tie_word_embeddings": True},
)
BY_CLASS = {"MiniCPM3ForCausalLM": MINICPM3}

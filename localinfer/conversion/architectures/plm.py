"""Conversion of PLM, whose latent attention keeps the matrix of all keys and values whole."""

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures.common import PRE_NORMS, RELU2, UNGATED_FFN
from localinfer.conversion.architectures.deepseek import WHOLE_MLA
from localinfer.conversion.metadata import attention_metadata

PLM = Architecture(
    name="plm",
    layer_tensors=(*PRE_NORMS, "attn_q", *WHOLE_MLA, *UNGATED_FFN),
    shapes={"attn_output": ("n_embd", "n_values")},
    activations=RELU2,
    has_partial_rope=True,
    key_aliases={"head_dim": "qk_rope_head_dim"},
    read_hparams=attention_metadata.expanded_mla_hparams,
    metadata=attention_metadata.expanded_mla,
    required_values={"q_lora_rank": None},
    defaults={"tie_word_embeddings": True},
)
BY_CLASS = {"PLMForCausalLM": PLM}

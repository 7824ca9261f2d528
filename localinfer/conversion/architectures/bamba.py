"""Bamba, whose config.json lists the layers with attention."""

from dataclasses import replace

import numpy as np

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures.common import GATED_FFN, PRE_NORMS, SEPARATE_QKV
from localinfer.conversion.architectures.mamba import MAMBA2, SSM_TENSORS
from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.hparams import HParams
from localinfer.conversion.metadata import recurrent_metadata
from localinfer.gguf.source import Field


def metadata(config: JsonObject, hp: HParams) -> dict[str, Field]:
    """Return the shape of the recurrent heads, and the number of key heads of each layer."""
    heads = [hp.n_head_kv if kind == "full_attention" else 0 for kind in hp.layer_types]
    counts = Field.numbers(np.array(heads, np.int32))
    return recurrent_metadata.ssm_shape(config, hp) | {"attention.head_count_kv": counts}


BAMBA = Architecture(
    name="bamba",
    name_map_architecture="falcon-h1",
    layer_tensors=(*PRE_NORMS, *GATED_FFN),
    layer_type_tensors={"linear_attention": (*SSM_TENSORS, "ssm_norm"), "full_attention": SEPARATE_QKV},
    shapes=MAMBA2.shapes,
    final_shapes=MAMBA2.final_shapes,
    has_partial_rope=True,
    read_hparams=recurrent_metadata.mamba2_hparams,
    metadata=metadata,
    required_values={"attention_bias": False, "mlp_bias": False, "mamba_conv_bias": True, "mamba_proj_bias": False},
)


def bamba(config: JsonObject) -> Architecture:
    """Return the architecture with the type of each layer."""
    listed, layers = config.get("attn_layer_indices", list, []), range(config.get("num_hidden_layers", int))
    kinds = ["full_attention" if layer in listed else "linear_attention" for layer in layers]
    return replace(BAMBA, defaults={"layer_types": kinds})


BY_CLASS = {"BambaForCausalLM": bamba}

"""GTE: BERT with rotary embeddings and GeGLU. Published checkpoints scale the rotation with NTK, which is the linear
scaling of another base."""

from typing import Any

import reference_models
from reference_spec import Spec, rope
from transformers import GteConfig

SIZES = {"vocab_size": reference_models.N_VOCAB, "max_position_embeddings": 256, "pad_token_id": None}


def published(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration with the keys of published checkpoints."""
    own = {
        "architectures": ["NewModel"], "model_type": "new", "position_embedding_type": "rope", "pack_qkv": True,
        "rope_theta": 2e4, "rope_scaling": {"type": "ntk", "factor": 8.0}, "layer_norm_type": "layer_norm",
        "logn_attention_scale": False, "layer_norm_eps": 1e-6,
    }  # fmt: skip
    return {key: value for key, value in config.items() if key != "rope_parameters"} | own


MODELS = {
    "gte": Spec(
        architecture="gte", encoder=True, saved=True, written=published,
        config=GteConfig(
            **SIZES, hidden_size=96, intermediate_size=160, num_hidden_layers=2, num_attention_heads=3,
            layer_norm_eps=1e-6, **rope("linear", 1.6e5, factor=8 ** (2 / 32)),
        ),
    ),
    "gte-narrow": Spec(
        architecture="gte", encoder=True, saved=True,
        config=GteConfig(
            **SIZES, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
            type_vocab_size=0, **rope(theta=5e5),
        ),
    ),
}  # fmt: skip

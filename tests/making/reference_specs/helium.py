"""Helium: Llama with rotated pairs side by side."""

from reference_spec import Spec, rope, sizes
from transformers import HeliumConfig

MODELS = {
    "helium": Spec(
        architecture="helium", saved=True, config=HeliumConfig(**sizes(3, 3, head_dim=32) | rope(theta=1e5)),
    ),
    "helium-gqa": Spec(
        architecture="helium", saved=True,
        config=HeliumConfig(**sizes(4, 2, head_dim=24) | rope() | {"tie_word_embeddings": True}, attention_bias=True),
    ),
}  # fmt: skip

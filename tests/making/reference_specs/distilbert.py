"""DistilBERT: BERT without token types, with other names."""

import reference_models
import transformers
from reference_spec import Spec

MODELS = {
    "distilbert": Spec(
        architecture="bert", encoder=True,
        config=transformers.DistilBertConfig(
            dim=96, hidden_dim=160, n_layers=2, n_heads=4, max_position_embeddings=256,
            vocab_size=reference_models.N_VOCAB, pad_token_id=None,
        ),
    ),
}  # fmt: skip

"""T5's encoder alone: version 1.0 with ReLU, and version 1.1 with gated GELU and another number of buckets."""

from reference_models import N_VOCAB
from reference_spec import SPECIAL_IDS, Spec
from transformers import T5Config, T5EncoderModel

SIZES = {"vocab_size": N_VOCAB, **SPECIAL_IDS}
RELU = {
    "d_model": 96, "d_ff": 160, "d_kv": 24, "num_heads": 4, "num_layers": 2, "feed_forward_proj": "relu",
}  # fmt: skip
GATED = {
    "d_model": 64, "d_ff": 224, "d_kv": 16, "num_heads": 6, "num_layers": 3, "feed_forward_proj": "gated-gelu",
    "relative_attention_num_buckets": 20,
}  # fmt: skip

MODELS = {
    "t5encoder": Spec(
        architecture="t5encoder", model=T5EncoderModel, encoder=True, saved=True, config=T5Config(**SIZES | RELU),
    ),
    "t5encoder-gated": Spec(
        architecture="t5encoder", model=T5EncoderModel, encoder=True, saved=True, config=T5Config(**SIZES | GATED),
    ),
}  # fmt: skip

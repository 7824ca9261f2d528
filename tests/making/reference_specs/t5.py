"""T5 and its encoder alone: version 1.0 with ReLU, and version 1.1 with gated GELU and another number of buckets; umT5,
whose layers have biases of their own."""

from typing import Any

from reference_models import N_VOCAB
from reference_spec import SPECIAL_IDS, Shapes, Spec
from transformers import T5Config, T5EncoderModel, T5ForConditionalGeneration, UMT5Config, UMT5ForConditionalGeneration

SIZES = {"vocab_size": N_VOCAB, **SPECIAL_IDS}
RELU = {
    "d_model": 96, "d_ff": 160, "d_kv": 24, "num_heads": 4, "num_layers": 2, "feed_forward_proj": "relu",
}  # fmt: skip
GATED = {
    "d_model": 64, "d_ff": 224, "d_kv": 16, "num_heads": 6, "num_layers": 3, "feed_forward_proj": "gated-gelu",
    "relative_attention_num_buckets": 20,
}  # fmt: skip

UNTIED = {"tie_word_embeddings": False, "num_decoder_layers": 2}
DEEP = {"tie_word_embeddings": False, "num_layers": 2, "num_decoder_layers": 3}



def published(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration as that of published checkpoints."""
    given = {key: value for key, value in config.items() if key != "scale_decoder_outputs"}
    return given | {"decoder_start_token_id": 5, "tie_word_embeddings": config["scale_decoder_outputs"]}


def untied(shapes: Shapes) -> Shapes:
    """Add an output layer of its own, which the class of transformers has if it is in the checkpoint."""
    return shapes | {"lm_head.weight": shapes["shared.weight"]}


def with_unused_biases(shapes: Shapes) -> Shapes:
    """Add biases of cross-attention, which published checkpoints of T5 1.0 have and nothing uses."""
    own = "decoder.block.0.layer.{}Attention.relative_attention_bias.weight"
    return shapes | {own.format("1.EncDec"): shapes[own.format("0.Self")]}


MODELS = {
    "t5": Spec(
        architecture="t5", model=T5ForConditionalGeneration, encoder_decoder=True, saved=True,
        config=T5Config(**SIZES | RELU), written=published, shapes=with_unused_biases,
    ),
    "t5-gated": Spec(
        architecture="t5", model=T5ForConditionalGeneration, encoder_decoder=True, saved=True,
        config=T5Config(**SIZES | GATED | UNTIED), written=published, shapes=untied,
    ),
    "umt5": Spec(
        architecture="t5", model=UMT5ForConditionalGeneration, encoder_decoder=True, saved=True,
        config=UMT5Config(**SIZES | GATED | DEEP), written=published, shapes=untied,
    ),
    "t5encoder": Spec(
        architecture="t5encoder", model=T5EncoderModel, encoder=True, saved=True, config=T5Config(**SIZES | RELU),
    ),
    "t5encoder-gated": Spec(
        architecture="t5encoder", model=T5EncoderModel, encoder=True, saved=True, config=T5Config(**SIZES | GATED),
    ),
}  # fmt: skip

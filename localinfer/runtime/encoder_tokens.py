"""The tokens of encoder-decoder models. A sequence has the tokens of the encoder first, whose ids are stored as ~id (a
negative number), and then those of the decoder. The encoder's tokens are evaluated in one batch."""

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from localinfer.graph.properties.model_properties import DECODER_START, ModelProperties


def tokens_of_prompt(ids: Sequence[int], properties: ModelProperties) -> list[int]:
    """Return the tokens with which a sequence begins: those of the encoder, and the first one of the decoder."""
    n_vocab = properties.f.tensors["token_embd.weight"].shape[0]
    return [*(~id for id in ids), properties.hparams.count(DECODER_START, 0, minimum=0, maximum=n_vocab - 1)]


def as_sequence(ids: Sequence[int], properties: ModelProperties) -> Sequence[int]:
    """Return the tokens of a text as a sequence has them: for an encoder-decoder model, the first half is the
    encoder's."""
    if not properties.has_decoder:
        return ids
    half = -(-len(ids) // 2)
    return [*tokens_of_prompt(ids[:half], properties), *ids[half:]]


def encoder_length(tokens: Sequence[int] | NDArray[np.int32]) -> int:
    """Return the number of the encoder's tokens, which come first."""
    return bisect_left(tokens, True, key=lambda id: id >= 0)

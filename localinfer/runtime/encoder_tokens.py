"""The tokens of encoder-decoder models. A sequence has the tokens of the encoder first, whose ids are stored as ~id (a
negative number), and then those of the decoder. The encoder's tokens are evaluated in one batch."""

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import UnsupportedError, UsageError
from localinfer.graph.properties.model_properties import DECODER_START, ModelProperties


def _encoder_tokens(ids: Sequence[int], properties: ModelProperties) -> list[int]:
    """Return the tokens with which a sequence begins: those of the encoder, and the first one of the decoder."""
    n_vocab = properties.f.tensors["token_embd.weight"].shape[0]
    return [*(~id for id in ids), properties.hparams.count(DECODER_START, 0, minimum=0, maximum=n_vocab - 1)]


def prompt_tokens(ids: Sequence[int], properties: ModelProperties) -> list[int]:
    """Return the tokens with which a sequence begins for a prompt. For an encoder-decoder model, the prompt's tokens
    are the encoder's, and the decoder begins with its start token. A prompt that has tokens of an encoder stays as it
    is."""
    if not properties.has_decoder or not ids or min(ids) < 0:
        return list(ids)
    return _encoder_tokens(ids, properties)


def as_sequence(ids: Sequence[int], properties: ModelProperties) -> Sequence[int]:
    """Return the tokens of a text as a sequence has them: for an encoder-decoder model, the first half is the
    encoder's."""
    if not properties.has_decoder:
        return ids
    half = -(-len(ids) // 2)
    return [*_encoder_tokens(ids[:half], properties), *ids[half:]]


def encoder_length(tokens: Sequence[int] | NDArray[np.int32]) -> int:
    """Return the number of the encoder's tokens, which come first."""
    return bisect_left(tokens, True, key=lambda id: id >= 0)


def require_texts(properties: ModelProperties) -> None:
    """Raise UnsupportedError for an encoder-decoder model, which does not evaluate texts without a prompt."""
    if properties.has_decoder:
        what = f"{properties.f.architecture} is an encoder-decoder model: it answers prompts (`localinfer generate`)"
        raise properties.f.error("", f"{what}, and does not evaluate texts", UnsupportedError)


def check_encoder_tokens(ids: NDArray[np.int32], n_past: int, properties: ModelProperties) -> None:
    """Check tokens that follow `n_past` ones in a sequence of an encoder-decoder model.

    Raises UnsupportedError unless a sequence begins with the encoder's tokens, UsageError for others later.
    """
    length = encoder_length(ids)
    if not n_past and not length:
        require_texts(properties)
    if length == len(ids):
        raise UsageError("tokens: those of an encoder must be followed by those of the decoder")
    if (length and n_past) or (ids[length:] < 0).any():
        raise UsageError("tokens: those of an encoder must be the first ones")

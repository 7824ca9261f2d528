"""The tokens of encoder-decoder models. A sequence has the tokens of the encoder first, whose ids are stored as ~id (a
negative number), and then those of the decoder. The encoder's tokens are evaluated in one batch."""

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def encoder_tokens(ids: Sequence[int]) -> list[int]:
    """Return token ids as tokens of the encoder."""
    return [~id for id in ids]


def encoder_length(tokens: Sequence[int] | NDArray[np.int32]) -> int:
    """Return the number of the encoder's tokens, which come first."""
    return bisect_left(tokens, True, key=lambda id: id >= 0)

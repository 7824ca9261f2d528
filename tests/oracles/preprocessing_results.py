"""Results of image processors in a form that can be compared: pixels, their levels from 0 to 255, and digests."""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from localinfer.multimodal.preprocessing.encoder_input import EncoderInput

STEP = 997  # between levels that are stored
Values = NDArray[np.float32]  # (channels, height, width)


def pixels_of(each: EncoderInput, patch: int) -> Values:
    """Return the image that the patches of an encoder input make up."""
    rows, columns = each.grid
    patches = each.patches.reshape(rows, columns, 3, patch, patch)
    return patches.transpose(2, 0, 3, 1, 4).reshape(3, rows * patch, columns * patch)


def levels_of(images: Sequence[Values], mean: Sequence[float], std: Sequence[float]) -> NDArray[np.uint8]:
    """Return the values of all images from 0 to 255, before they were normalized, one behind the other."""
    scale, shift = np.array(std)[:, None, None], np.array(mean)[:, None, None]
    return np.concatenate([np.rint((each * scale + shift) * 255).astype(np.uint8).ravel() for each in images])


def digest_of_inputs(images: Sequence[Values]) -> str:
    """Return a digest of all values, to the last bit."""
    digest = blake2b(digest_size=8)
    for each in images:
        digest.update(np.ascontiguousarray(each, np.float32) + np.float32(0))  # one zero instead of two
    return digest.hexdigest()

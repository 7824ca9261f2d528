"""Decode all strings of a GGUF array at once, without a Python loop."""

import numpy as np
from numpy.typing import NDArray

from localinfer.gguf.reader import GGUF, StringArray

NUL = 0


def decode_strings(f: GGUF, key: str, array: StringArray) -> list[str]:
    """Return the strings as text. Raises LocalInferError, naming the key, if one is not UTF-8."""
    _, *texts = decode_bytes(f, key, nul_prefixed(array)).split("\0")
    return texts if len(texts) == len(array) else [text.decode() for text in array]


def decode_bytes(f: GGUF, key: str, stored: NDArray[np.uint8]) -> str:
    try:
        return stored.tobytes().decode()
    except UnicodeDecodeError:
        raise f.error(key, "not every string is UTF-8") from None


def nul_prefixed(array: StringArray) -> NDArray[np.uint8]:
    """Return the strings concatenated, each preceded by a NUL.

    In the file each string follows its 8-byte length; a NUL replaces the length:

        05 00 00 00 00 00 00 00  H  e  l  l  o  02 00 00 00 00 00 00 00  a  n
                             00  H  e  l  l  o                       00  a  n
    """
    if not len(array):
        return np.empty(0, np.uint8)
    begin, end = int(array.offsets[0]) - 8, int(array.offsets[-1] + array.lengths[-1])
    stored = array.data[begin:end].copy()
    keep = np.ones(len(stored), bool)
    for distance in range(1, 8):
        keep[array.offsets - begin - distance] = False
    stored[array.offsets - begin - 8] = NUL
    return stored[keep]

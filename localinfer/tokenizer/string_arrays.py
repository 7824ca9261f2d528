"""Decode all strings of a GGUF array at once, or find one, without a Python loop."""

import numpy as np
from numpy.typing import NDArray

from localinfer.gguf.reader import GGUF, StringArray

NUL = 0
HEAD_MASKS = np.array([(1 << 8 * n) - 1 for n in range(9)], np.uint64)  # of the first n bytes


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


class StringIndex:
    """Finds strings of an array. It is made faster than a dictionary of them, and finds slower."""

    def __init__(self, array: StringArray) -> None:
        self._array = array
        self._heads = np.empty(0, np.uint64)  # the first 8 bytes of each string, zeros behind shorter ones
        if len(array):
            begin, end = int(array.offsets[0]), int(array.offsets[-1] + array.lengths[-1])
            stored = np.concatenate([array.data[begin:end], np.zeros(8, np.uint8)])
            heads = np.ndarray(end - begin + 1, np.dtype("<u8"), stored, strides=(1,))  # at each byte
            self._heads = heads[array.offsets - begin] & HEAD_MASKS[np.minimum(array.lengths, 8)]

    def __len__(self) -> int:
        return len(self._array)

    def find_last(self, text: bytes, default: int) -> int:
        """Return the index of the last string that is this text."""
        candidates = np.flatnonzero(self._heads == int.from_bytes(text[:8], "little"))
        matches = candidates[self._array.lengths[candidates] == len(text)]
        return next((int(index) for index in reversed(matches) if self._array[index] == text), default)

"""All strings of a file's array at once, without a Python loop over them."""

import numpy as np
from numpy.typing import NDArray

from localinfer.files.gguf import GGUF, StringArray

NUL = 0


def texts(f: GGUF, key: str, array: StringArray) -> list[str]:
    """Raises LocalInferError, naming the key, where a string is not UTF-8."""
    _, *found = decoded(f, key, behind_nul(array)).split("\0")
    return found if len(found) == len(array) else [text.decode() for text in array]


def decoded(f: GGUF, key: str, stored: NDArray[np.uint8]) -> str:
    try:
        return stored.tobytes().decode()
    except UnicodeDecodeError:
        raise f.error(key, "not every string is UTF-8") from None


def behind_nul(array: StringArray) -> NDArray[np.uint8]:
    """The strings one after another, each behind a NUL.

    In the file each one stands behind its length, 8 bytes; a NUL takes the length's place:

        05 00 00 00 00 00 00 00  H  e  l  l  o  02 00 00 00 00 00 00 00  a  n
                             00  H  e  l  l  o                       00  a  n
    """
    if not len(array):
        return np.empty(0, np.uint8)
    begin, end = int(array.offsets[0]) - 8, int(array.offsets[-1] + array.lengths[-1])
    stored = array.data[begin:end].copy()
    keep = np.ones(len(stored), bool)
    for place in range(1, 8):
        keep[array.offsets - begin - place] = False
    stored[array.offsets - begin - 8] = NUL
    return stored[keep]

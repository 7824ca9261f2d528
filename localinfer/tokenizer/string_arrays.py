"""Decode or check all strings of a GGUF array at once, without a Python loop."""

import numpy as np
from numpy.typing import NDArray

from localinfer.gguf.reader import GGUF, StringArray

LENGTH_BYTES = 8  # GGUF writes each string after its length
ASCII_END = 0x80
HEAD_MASKS = np.array([(1 << 8 * n) - 1 for n in range(9)], np.uint64)  # of the first n bytes
HEAD_FACTOR, LENGTH_FACTOR = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)  # any odd numbers


def decode_strings(f: GGUF, key: str, array: StringArray) -> list[str]:
    """Return the strings as text. Raises LocalInferError, naming the key, if one is not UTF-8."""
    _, *texts = _decode(f, key, nul_prefixed(array)).split("\0")
    return texts if len(texts) == len(array) else [text.decode() for text in array]


def copy_texts(f: GGUF, key: str, array: StringArray) -> StringArray:
    """Return a copy of the strings in memory, where nobody changes them. Raises LocalInferError, naming the key, if one
    is not UTF-8.
    """
    stored = with_zeros_for_lengths(array)
    _decode(f, key, stored)
    starts = array.offsets - array.offsets[:1] + LENGTH_BYTES
    return StringArray(stored, np.append(starts, len(stored) + LENGTH_BYTES))


def _decode(f: GGUF, key: str, stored: NDArray[np.uint8]) -> str:
    try:
        return stored.tobytes().decode()
    except UnicodeDecodeError:
        raise f.error(key, "not every string is UTF-8") from None


def nul_prefixed(array: StringArray) -> NDArray[np.uint8]:
    """Return the strings concatenated, each preceded by a NUL, which replaces its length:

        05 00 00 00 00 00 00 00  H  e  l  l  o  02 00 00 00 00 00 00 00  a  n
                             00  H  e  l  l  o                       00  a  n
    """
    if not len(array):
        return np.empty(0, np.uint8)
    stored, offsets = with_zeros_for_lengths(array), array.offsets - array.offsets[0] + LENGTH_BYTES
    keep = np.ones(len(stored), bool)
    for distance in range(1, LENGTH_BYTES):
        keep[offsets - distance] = False
    return stored[keep]


def with_zeros_for_lengths(array: StringArray) -> NDArray[np.uint8]:
    """Return a copy of the strings as in the file, but with zeros in place of their lengths."""
    if not len(array):
        return np.empty(0, np.uint8)
    begin, end = int(array.offsets[0]) - LENGTH_BYTES, int(array.offsets[-1] + array.lengths[-1])
    stored, starts = array.data[begin:end].copy(), array.offsets - LENGTH_BYTES - begin
    stored[starts] = 0
    for start in starts[array.lengths >= 1 << 8]:  # the others have zeros in the other bytes of their lengths
        stored[start : start + LENGTH_BYTES] = 0
    return stored


def has_duplicates(array: StringArray) -> bool:
    """Return whether two of the strings are equal.

    Only strings with the same length, and the same first and last eight bytes, are compared.
    """
    if not len(array):
        return False
    begin, end = int(array.offsets[0]), int(array.offsets[-1] + array.lengths[-1])
    stored = np.concatenate([array.data[begin:end], np.zeros(8, np.uint8)])
    words = np.ndarray(end - begin + 1, np.dtype("<u8"), stored, strides=(1,))  # at each byte
    starts, lengths = array.offsets - begin, array.lengths
    heads = words[starts] & HEAD_MASKS[np.minimum(lengths, 8)]
    tails = words[starts + np.maximum(lengths - 8, 0)] * (lengths > 8)
    hashes = heads * HEAD_FACTOR + tails + lengths.astype(np.uint64) * LENGTH_FACTOR
    ordered = np.sort(hashes)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(repeated):
        return False
    similar = [array[index] for index in np.flatnonzero(np.isin(hashes, repeated)).tolist()]
    return len(set(similar)) < len(similar)

"""Serialize a vocabulary for the `sentencepiece` library: a Protocol Buffers message, built from arrays.

A Python loop over 262,144 tokens would dominate the start time. Field numbers are those of
sentencepiece_model.proto.
"""

from collections.abc import Iterator

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from localinfer.gguf.reader import StringArray
from localinfer.tokenizer.vocabulary import BYTE, CONTROL, NORMAL, UNKNOWN, Vocabulary

VARINT, BYTES, FIXED32 = 0, 2, 5  # wire types; a field's tag is its number << 3 | wire type

# The head of a piece. Fields may have any order, and varints may be longer than necessary:
# so all heads have the same size, and the token's own bytes come last.
#
#   0A LL LL LL   15 SS SS SS SS   18 TT   0A LL LL LL   (the token's bytes)
#   piece         score            type    text
HEAD = np.dtype(
    [
        ("piece", "u1"), ("piece_length", "u1", 3),
        ("score", "u1"), ("score_value", "<f4"),
        ("type", "u1"), ("type_value", "u1"),
        ("text", "u1"), ("text_length", "u1", 3),
    ]
)  # fmt: skip
assert HEAD.itemsize == 15
LENGTH_IN_FILE = 8  # GGUF writes each token after its length
BATCH_TOKENS = 8192


def serialized_model(vocabulary: Vocabulary, scores: NDArray[np.float32], byte_fallback: bool) -> bytes:
    """Return the message: all tokens under their ids, plus the required unknown token.

    Text never becomes a control token. User-defined tokens are serialized as normal ones: texts are already split at
    them, but the texts between them may still merge to one, as "  " in front of "▁" does.
    """
    kinds = np.full(len(vocabulary), NORMAL, np.uint8)
    kinds[vocabulary.types == BYTE] = BYTE
    kinds[(vocabulary.types == CONTROL) | (vocabulary.types == UNKNOWN)] = CONTROL
    unknown = _bytes(1, b"\xff unknown") + _varint(3, UNKNOWN)  # no UTF-8 text contains this byte
    trainer = _varint(3, 2) + _varint(35, byte_fallback)  # model_type: BPE
    normalizer = _bytes(1, b"identity") + _varint(3, 0) + _varint(4, 0)  # no prefix; keep all spaces
    pieces = _pieces(vocabulary.tokens, scores, kinds)
    return b"".join([*pieces, _bytes(1, unknown), _bytes(2, trainer), _bytes(3, normalizer)])


def _pieces(tokens: StringArray, scores: NDArray[np.float32], kinds: NDArray[np.uint8]) -> Iterator[bytes]:
    """Yield the pieces, some thousands at a time: touching new memory is the main cost."""
    for start in range(0, len(tokens), BATCH_TOKENS):
        batch = slice(start, start + BATCH_TOKENS)
        heads = _heads(tokens.lengths[batch], scores[batch], kinds[batch])
        yield _with_heads(tokens.data, tokens.offsets[batch], tokens.lengths[batch], heads)


def _with_heads(
    data: NDArray[np.uint8], offsets: NDArray[np.int64], lengths: NDArray[np.int64], heads: NDArray[np.void]
) -> bytes:
    """Return the tokens as stored in the file, with each length replaced by a head.

    np.repeat copies all bytes of the file once, and the first byte of each length often enough for the size of the
    head.
    """
    begin, end = int(offsets[0]) - LENGTH_IN_FILE, int(offsets[-1] + lengths[-1])
    copies = np.ones(end - begin, np.intp)
    copies[offsets - LENGTH_IN_FILE - begin] += HEAD.itemsize - LENGTH_IN_FILE
    pieces = np.repeat(data[begin:end], copies)

    sizes = lengths + HEAD.itemsize
    windows = sliding_window_view(pieces, HEAD.itemsize, writeable=True)
    windows[np.cumsum(sizes) - sizes] = heads.view(np.uint8).reshape(-1, HEAD.itemsize)
    return pieces.tobytes()


def _heads(lengths: NDArray[np.int64], scores: NDArray[np.float32], kinds: NDArray[np.uint8]) -> NDArray[np.void]:
    heads = np.empty(len(lengths), HEAD)
    heads["piece"] = heads["text"] = 1 << 3 | BYTES
    heads["score"], heads["score_value"] = 2 << 3 | FIXED32, scores
    heads["type"], heads["type_value"] = 3 << 3 | VARINT, kinds
    heads["piece_length"] = _three_bytes(lengths + HEAD.itemsize - 4)
    heads["text_length"] = _three_bytes(lengths)
    return heads


def _three_bytes(numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Encode numbers below 2^21 as 3-byte varints: 7 bits per byte, low bits first. (n,) -> (n, 3)."""
    assert numbers.max() < 1 << 21
    return np.stack([numbers & 127 | 128, numbers >> 7 & 127 | 128, numbers >> 14], axis=1).astype(np.uint8)


def _varint(field: int, value: int) -> bytes:
    assert value < 128
    return _tag(field, VARINT) + bytes([value])


def _bytes(field: int, value: bytes) -> bytes:
    assert len(value) < 128
    return _tag(field, BYTES) + bytes([len(value)]) + value


def _tag(field: int, wire_type: int) -> bytes:
    tag = field << 3 | wire_type
    return bytes([tag]) if tag < 128 else bytes([tag & 127 | 128, tag >> 7])

"""Read tokenizer.model of SentencePiece: a Protocol Buffers message with tokens, scores and types. T5's older
checkpoints have it as spiece.model.

    ModelProto       1: pieces   2: trainer_spec   3: normalizer_spec
    SentencePiece    1: text     2: score, f32     3: type, the values of tokenizer.ggml.token_type
    TrainerSpec      3: model_type, 1 is unigram and 2 is BPE
    NormalizerSpec   2: precompiled_charsmap   3: add_dummy_prefix   4: remove_extra_whitespaces

Field numbers are those of sentencepiece_model.proto.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from localinfer.conversion.vocabulary.token_list import Token, TokenList, user_defined
from localinfer.errors import LocalInferError, UnsupportedError
from localinfer.escaping import printable
from localinfer.gguf.source import Field
from localinfer.tokenizer.vocabulary import BYTE, NORMAL, USER_DEFINED

NAMES = ("tokenizer.model", "spiece.model")
FIRST_BYTE = b"\n"  # the tag of the first piece
UNIGRAM, BPE = 1, 2
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types; a field's tag is its number << 3 | wire type
Value = int | bytes


def is_sentencepiece(content: bytes) -> bool:
    """Return whether the file may be SentencePiece's; other libraries use the same name."""
    return content.startswith(FIRST_BYTE)


def read(path: Path, content: bytes) -> TokenList:
    """Read the tokens. Raises LocalInferError for a truncated or invalid message, UnsupportedError for other models
    than BPE and unigram.
    """
    by_id: dict[int, Token] = {}
    kind, normalizer = UNIGRAM, None  # the format's default
    try:
        for number, value in parse_fields(content):
            if number == 1:
                by_id[len(by_id)] = parse_piece(dict(parse_fields(as_bytes(value))))
            elif number == 2:
                kind = int(dict(parse_fields(as_bytes(value))).get(3, kind))
            elif number == 3:
                normalizer = dict(parse_fields(as_bytes(value)))
        if normalizer is None:
            raise ValueError("there is no normalizer_spec")
        charsmap = as_bytes(normalizer.get(2, b""))
    except (ValueError, IndexError, struct.error) as error:
        what = f"not a SentencePiece model, or truncated: {printable(str(error), 80)}"
        raise LocalInferError(f"{printable(str(path))}: {what}") from None
    adds_space, merges_spaces = (bool(normalizer.get(number, True)) for number in (3, 4))
    if kind == UNIGRAM:
        more = {"remove_extra_whitespaces": Field.flag(merges_spaces)}
        if charsmap:
            more["precompiled_charsmap"] = Field.numbers(np.frombuffer(charsmap, np.uint8))
        return TokenList("t5", "default", by_id, adds_space=adds_space, extra_fields=more)
    if kind != BPE:
        what = f"{kind} is not supported (only {UNIGRAM}, unigram, and {BPE}, BPE)"
        raise UnsupportedError(f"{printable(str(path))}: model_type: {what}")
    return TokenList("llama", "default", by_id, adds_space=adds_space)


def parse_piece(fields: dict[int, Value]) -> Token:
    """Return the token that the fields of a protobuf message describe. Raises ValueError if one is invalid."""
    kind = int(fields.get(3, NORMAL))
    if not NORMAL <= kind <= BYTE:
        raise ValueError(f"type {kind} of a token")
    (score,) = struct.unpack("<f", as_bytes(fields.get(2, bytes(4))))
    text = as_bytes(fields.get(1, b"")).decode()
    return user_defined(text, score) if kind == USER_DEFINED else Token(text, kind, score)


def as_bytes(value: Value) -> bytes:
    """Return a field that must be bytes. Raises ValueError for a number."""
    if isinstance(value, int):
        raise ValueError("a number where bytes should be")
    return value


def parse_fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """Yield the fields of a message: number, and an int or bytes depending on the wire type."""
    at = 0
    while at < len(message):
        tag, at = parse_varint(message, at)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == VARINT:
            value, at = parse_varint(message, at)
            yield number, value
            continue
        size = {FIXED32: 4, FIXED64: 8}.get(wire_type, 0)
        if wire_type == BYTES:
            size, at = parse_varint(message, at)
        elif not size:
            raise ValueError(f"wire type {wire_type}")
        if at + size > len(message):
            raise IndexError("a field goes past the end")
        yield number, message[at : at + size]
        at += size


def parse_varint(message: bytes, at: int) -> tuple[int, int]:
    """Return a varint and the offset after it."""
    value = 0
    for shift in range(0, 70, 7):
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a number of more than 10 bytes")

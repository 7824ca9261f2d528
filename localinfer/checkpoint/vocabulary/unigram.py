"""SentencePiece's unigram model in a tokenizer.json, as XLM-R has it -> the tokens with their scores."""

import base64
import binascii

import numpy as np

from localinfer.checkpoint.folder import Table
from localinfer.checkpoint.vocabulary.tokens import Token, Tokens
from localinfer.errors import Unsupported
from localinfer.files.source import Field
from localinfer.text import printable
from localinfer.tokenizer.vocabulary import NORMAL, UNKNOWN

# What is done to spaces says the same as `remove_extra_whitespaces`, in whatever words.
NORMALIZERS, CUTS = {"Precompiled", "Replace", "Strip"}, {"Metaspace", "WhitespaceSplit"}


def read(file: Table) -> Tokens:
    """Raises Unsupported for steps that GGUF has no keys for."""
    model = file.table("model")
    if model.get("byte_fallback", bool, False):
        raise model.error("byte_fallback", "is not supported", Unsupported)
    normalizers = steps(file, "normalizer", "normalizers", NORMALIZERS)
    steps(file, "pre_tokenizer", "pretokenizers", CUTS)
    more = {"remove_extra_whitespaces": Field.flag(True)}
    for step in normalizers:
        if step.values["type"] == "Precompiled":
            more["precompiled_charsmap"] = Field.numbers(charsmap(step))
    unknown, by_id = model.get("unk_id", int, -1), {}
    for id, pair in enumerate(model.get("vocab", list)):
        if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) and is_number(pair[1])):
            raise model.error(f"vocab[{id}]", f"{printable(repr(pair), 80)} is not a text and a score")
        by_id[id] = Token(pair[0], UNKNOWN if id == unknown else NORMAL, float(pair[1]))
    return Tokens("t5", "default", by_id, adds_space=True, more=more)


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) < 1e30


def steps(file: Table, key: str, members: str, known: set[str]) -> list[Table]:
    """The steps of a normalizer or pre-tokenizer, one or a sequence."""
    step = file.table(key)
    found = step.tables(members) if step.values.get("type") == "Sequence" else [step] if step.values else []
    for each in found:
        if each.get("type", str) not in known:
            raise each.error("type", f"{printable(repr(each.values['type']), 40)} is not supported", Unsupported)
    return found


def charsmap(step: Table) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
    """The bytes of what characters become."""
    try:
        return np.frombuffer(base64.b64decode(step.get("precompiled_charsmap", str, ""), validate=True), np.uint8)
    except (binascii.Error, ValueError):
        raise step.error("precompiled_charsmap", "is not base64") from None

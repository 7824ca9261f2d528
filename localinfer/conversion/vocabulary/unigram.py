"""Read a SentencePiece unigram model from tokenizer.json, as XLM-R has it: tokens with scores."""

import base64
import binascii

import numpy as np

from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.vocabulary.token_list import Token, TokenList
from localinfer.errors import UnsupportedError
from localinfer.escaping import printable
from localinfer.gguf.source import Field
from localinfer.tokenizer.vocabulary import NORMAL, UNKNOWN

# All of these steps together are equivalent to `remove_extra_whitespaces`.
NORMALIZERS, PRE_TOKENIZERS = {"Precompiled", "Replace", "Strip"}, {"Metaspace", "WhitespaceSplit"}


def read(file: JsonObject) -> TokenList:
    """Read the tokens. Raises UnsupportedError for steps that GGUF has no keys for."""
    model = file.child("model")
    if model.get("byte_fallback", bool, False):
        raise model.error("byte_fallback", "is not supported", UnsupportedError)
    normalizers = steps(file, "normalizer", "normalizers", NORMALIZERS)
    steps(file, "pre_tokenizer", "pretokenizers", PRE_TOKENIZERS)
    more = {"remove_extra_whitespaces": Field.flag(True)}
    for step in normalizers:
        if step.values["type"] == "Precompiled":
            more["precompiled_charsmap"] = Field.numbers(charsmap(step))
    unknown, by_id = model.get("unk_id", int, -1), {}
    for id, pair in enumerate(model.get("vocab", list)):
        if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) and is_number(pair[1])):
            raise model.error(f"vocab[{id}]", f"{printable(repr(pair), 80)} is not a string and a score")
        by_id[id] = Token(pair[0], UNKNOWN if id == unknown else NORMAL, float(pair[1]))
    return TokenList("t5", "default", by_id, adds_space=True, extra_fields=more)


def is_number(value: object) -> bool:
    """Return whether a JSON value is a number that float32 can represent."""
    return isinstance(value, int | float) and abs(value) < 1e30


def steps(file: JsonObject, key: str, list_key: str, known: set[str]) -> list[JsonObject]:
    """Return the steps of a normalizer or pre-tokenizer, a single one or a sequence."""
    step = file.child(key)
    result = step.children(list_key) if step.values.get("type") == "Sequence" else [step] if step.values else []
    for each in result:
        if each.get("type", str) not in known:
            raise each.error("type", f"{printable(repr(each.values['type']), 40)} is not supported", UnsupportedError)
    return result


def charsmap(step: JsonObject) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
    """Return the bytes of the precompiled normalization map."""
    try:
        return np.frombuffer(base64.b64decode(step.get("precompiled_charsmap", str, ""), validate=True), np.uint8)
    except (binascii.Error, ValueError):
        raise step.error("precompiled_charsmap", "is not base64") from None

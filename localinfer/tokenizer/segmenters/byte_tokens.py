"""Byte fallback: the tokens <0x00> to <0xFF>, which encode characters that are not in the vocabulary."""

from localinfer.escaping import printable
from localinfer.gguf.reader import GGUF
from localinfer.tokenizer.vocabulary import BYTE, TOKENS, Vocabulary

NAMES = {b"<0x%02X>" % byte: bytes([byte]) for byte in range(256)}


def read_byte_tokens(f: GGUF, vocabulary: Vocabulary) -> dict[int, bytes]:
    """Return id -> byte of all 256 byte tokens, or an empty dict if there are none.

    Raises LocalInferError for a BYTE token with another text, or if some byte tokens are missing.
    """
    ids = {vocabulary.tokens[id]: id for id in vocabulary.ids_of(BYTE)}
    for text, id in ids.items():
        if text not in NAMES:
            raise f.error(TOKENS, f"token {id} is of type byte, but reads {printable(repr(text), 40)}")
    missing = [text.decode() for text in NAMES if text not in ids]
    if ids and missing:
        raise f.error(TOKENS, f"the byte token {missing[0]} is missing ({len(missing)} of 256 are)")
    return {id: NAMES[text] for text, id in ids.items()}

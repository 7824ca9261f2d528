"""Read a WordPiece tokenizer.json, as used by BERT, and convert tokens to GGUF's notation.

In GGUF the first piece of a word begins with "▁" and the others with nothing; BERT uses nothing and "##".
"""

from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.vocabulary.token_list import Token, TokenList
from localinfer.errors import UnsupportedError
from localinfer.escaping import printable
from localinfer.gguf.source import Field
from localinfer.tokenizer.vocabulary import NORMAL, UNKNOWN

REQUIRED_VALUES = {
    "model.continuing_subword_prefix": "##",
    "normalizer.type": "BertNormalizer",
    "pre_tokenizer.type": "BertPreTokenizer",
}
REQUIRED_STEPS = ("clean_text", "handle_chinese_chars")


def read(file: JsonObject) -> TokenList:
    """Read the tokens. Raises UnsupportedError for a normalizer or pre-tokenizer other than BERT's."""
    for path, required in REQUIRED_VALUES.items():
        step, _, key = path.partition(".")
        given = file.child(step).get(key, str, "")
        if given != required:
            raise file.child(step).error(key, f"{printable(repr(given), 40)} is not supported", UnsupportedError)
    model, normalizer = file.child("model"), file.child("normalizer")
    for key in REQUIRED_STEPS:
        if not normalizer.get(key, bool, True):
            raise normalizer.error(key, "false is not supported", UnsupportedError)
    unknown = model.get("unk_token", str, "[UNK]")
    vocab = JsonObject(model.path, model.get("vocab", dict), "model.vocab.")
    types = {unknown: UNKNOWN}
    by_id = {vocab.get(text, int): Token(to_gguf_piece(text), types.get(text, NORMAL)) for text in vocab.values}
    if len(by_id) < len(vocab.values) or min(by_id, default=0) < 0:
        raise model.error("vocab", "two tokens have the same id, or one has none")
    lower = normalizer.get("lowercase", bool, True)
    folding = {
        "normalizer.lowercase": Field.flag(lower),
        "normalizer.strip_accents": Field.flag(normalizer.get("strip_accents", bool, lower)),
    }
    return TokenList("bert", "default", by_id, extra_fields=folding)


def to_gguf_piece(text: str) -> str:
    """Return a piece as GGUF writes it."""
    return text.removeprefix("##") if text.startswith("##") else f"▁{text}"

"""WordPiece in a tokenizer.json, which BERT cuts texts with -> the tokens, in GGUF's spelling.

There the beginning of a word has a "▁" in front and the rest nothing, where BERT writes nothing and "##".
"""

from localinfer.checkpoint.folder import Table
from localinfer.checkpoint.vocabulary.tokens import Token, Tokens
from localinfer.errors import Unsupported
from localinfer.files.source import Field
from localinfer.text import printable
from localinfer.tokenizer.vocabulary import NORMAL, UNKNOWN

FIXED = {
    "model.continuing_subword_prefix": "##",
    "normalizer.type": "BertNormalizer",
    "pre_tokenizer.type": "BertPreTokenizer",
}
DO = ("clean_text", "handle_chinese_chars")


def read(file: Table) -> Tokens:
    """Raises Unsupported for other ways to fold and to cut than BERT's."""
    for place, usual in FIXED.items():
        step, _, key = place.partition(".")
        given = file.table(step).get(key, str, "")
        if given != usual:
            raise file.table(step).error(key, f"{printable(repr(given), 40)} is not supported", Unsupported)
    model, normalizer = file.table("model"), file.table("normalizer")
    for key in DO:
        if not normalizer.get(key, bool, True):
            raise normalizer.error(key, "false is not supported", Unsupported)
    unknown = model.get("unk_token", str, "[UNK]")
    vocab = Table(model.path, model.get("vocab", dict), "model.vocab.")
    types = {unknown: UNKNOWN}
    by_id = {vocab.get(text, int): Token(spelled(text), types.get(text, NORMAL)) for text in vocab.values}
    if len(by_id) < len(vocab.values) or min(by_id, default=0) < 0:
        raise model.error("vocab", "two tokens have the same id, or one has none")
    lower = normalizer.get("lowercase", bool, True)
    folding = {
        "normalizer.lowercase": Field.flag(lower),
        "normalizer.strip_accents": Field.flag(normalizer.get("strip_accents", bool, lower)),
    }
    return Tokens("bert", "default", by_id, more=folding)


def spelled(text: str) -> str:
    return text.removeprefix("##") if text.startswith("##") else f"▁{text}"

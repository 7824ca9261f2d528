"""WordPiece: normalization of the text, and the greedy longest match."""

from pathlib import Path
from typing import Any

import pytest
from synthetic_vocabularies import keys_of, write

from localinfer.gguf.reader import open_gguf
from localinfer.tokenizer import Tokenizer, from_gguf
from localinfer.tokenizer.segmenters.word_piece import Folding

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
PIECES = ["▁un", "aff", "able", "▁a", "▁aff", "a", "▁!", "▁字", "▁É", "▁é", "▁e"]


def load(path: Path, **keys: Any) -> Tokenizer:
    ids = {"unknown_token_id": 1, "bos_token_id": 2, "seperator_token_id": 3}
    return from_gguf(open_gguf(write(path / "model.gguf", keys_of("bert", SPECIAL, PIECES, **ids, **keys))))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("unaffable", ["▁un", "aff", "able"]),
        ("Un-AFF", ["▁un", "[UNK]", "▁aff"]),  # the hyphen is a word
        ("unx a", ["[UNK]", "▁a"]),  # a word with an unknown suffix becomes one unknown token
        ("a!!字字a", ["▁a", "▁!", "▁!", "▁字", "▁字", "▁a"]),
        ("É\u0301 e\u0301", ["▁e", "▁e"]),
        ("\u00a0a\u2003a\x1ca\n", ["▁a", "▁a", "a"]),  # control characters are removed
        ("[SEP]", ["[UNK]"] * 3),
        ("", []),
    ],
)
def test_pieces(tmp_path: Path, text: str, expected: list[str]) -> None:
    tokenizer = load(tmp_path)
    ids = tokenizer.encode(text, add_special=False)
    assert [(SPECIAL + PIECES)[id] for id in ids] == expected


def test_bos_and_eos(tmp_path: Path) -> None:
    """BOS and EOS are added regardless of the file's settings."""
    tokenizer = load(tmp_path, add_bos_token=False, add_eos_token=False)
    assert tokenizer.encode("a") == [2, 7, 3]
    assert tokenizer.encode("a[SEP]a", parse_special=True) == [2, 7, 3, 7, 3]


def test_cased(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, **{"normalizer.lowercase": False})
    ids = tokenizer.encode("É é A", add_special=False)
    assert [(SPECIAL + PIECES)[id] for id in ids] == ["▁É", "▁é", "[UNK]"]


@pytest.mark.parametrize(
    ("char", "plain", "cased", "accented"),
    [
        ("A", "a", "A", "a"),
        ("É", "e", "É", "é"),
        ("İ", "i", "İ", "i"),
        ("\u0301", "", "\u0301", "\u0301"),
        ("\t", " ", " ", " "),
        ("\u3000", " ", " ", " "),
        ("\0", "", "", ""),
        ("\u200d", "", "", ""),
        ("\ufffd", "", "", ""),
        ("$", " $ ", " $ ", " $ "),
        ("€", "€", "€", "€"),  # symbols outside of ASCII count as letters
        ("。", " 。 ", " 。 ", " 。 "),
        ("日", " 日 ", " 日 ", " 日 "),
        ("각", "ᄀ", "각", "각"),
    ],
)
def test_folding(char: str, plain: str, cased: str, accented: str) -> None:
    assert char.translate(Folding(lower=True, strip_accents=True)) == plain
    assert char.translate(Folding(lower=False, strip_accents=False)) == cased
    assert char.translate(Folding(lower=True, strip_accents=False)) == accented

"""PLaMo 2's tokenizer compared with an exhaustive search over all segmentations."""

import random
from functools import cache
from pathlib import Path

from synthetic_vocabularies import BYTE_TOKENS, keys_of, plamo2, write
from tiny import Field

from localinfer.gguf.reader import open_gguf
from localinfer.tokenizer import Tokenizer, from_gguf

PIECES = {"a": -3, "b": -3.5, "ab": -4, "ba": -5, "aba": -7.25, "abab": -8}


def load(path: Path) -> Tokenizer:
    tokens = [*BYTE_TOKENS, *PIECES]
    scores = Field("ARRAY", [0.0] * 257 + [float(score) for score in PIECES.values()], "FLOAT32")
    return from_gguf(open_gguf(write(path / "model.gguf", keys_of("plamo2", ["<|plamo:unk|>"], tokens, scores=scores))))


def test_equals_exhaustive_search(tmp_path: Path) -> None:
    tokenizer = load(tmp_path)

    @cache
    def best(text: str) -> float:
        candidates = (score + best(text[len(piece) :]) for piece, score in PIECES.items() if text.startswith(piece))
        return max(candidates) if text else 0.0

    generator = random.Random(1)
    for _ in range(200):
        text = "".join(generator.choice("ab") for _ in range(generator.randint(1, 14)))
        pieces = [tokenizer.decode([id]) for id in tokenizer.encode(text)]
        assert "".join(pieces) == text
        assert sum(PIECES[piece] for piece in pieces) == best(text)


def test_longest_token_wins_ties(tmp_path: Path) -> None:
    tokenizer = load(tmp_path)
    assert [tokenizer.decode([id]) for id in tokenizer.encode("abab")] == ["abab"]  # same score as ab, ab


def test_byte_fallback(tmp_path: Path) -> None:
    tokenizer = load(tmp_path)
    assert [tokenizer.token_bytes(id) for id in tokenizer.encode("aéb")] == [b"a", b"\xc3", b"\xa9", b"b"]


def test_leading_byte_order_mark(tmp_path: Path) -> None:
    tokenizer = from_gguf(open_gguf(write(tmp_path / "model.gguf", plamo2())))
    assert tokenizer.decode(tokenizer.encode("\ufeffa\ufeff")) == "a\ufeff"

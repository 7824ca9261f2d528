"""Unigram models compared with an exhaustive search; normalization; broken charsmaps."""

import itertools
import random
from pathlib import Path
from typing import Any

import pytest
from synthetic_vocabularies import NORMAL, UNUSED, USER_DEFINED, charsmap, keys_of, write
from tiny import Field

from localinfer.gguf.reader import open_gguf
from localinfer.tokenizer import Tokenizer, from_gguf
from localinfer.tokenizer.segmenters.charsmap import Charsmap

PIECES = {"▁": -2.0, "a": -3.0, "b": -3.5, "ab": -4.0, "▁a": -3.0, "ba": -5.0, "aba": -7.25, "▁▁": -6.0}
SPECIAL = ["<pad>", "</s>", "<unk>"]
REPLACED = {"A": "a", "ab": "X", "abcd": "Y", "ﬁ": "fi", "\t": " ", "\u200b": ""}


def load(path: Path, pieces: dict[str, float] = PIECES, **keys: Any) -> Tokenizer:
    scores = [0.0] * len(SPECIAL) + list(pieces.values())
    created = keys_of("t5", SPECIAL, list(pieces), scores=Field("ARRAY", scores, "FLOAT32"))
    return from_gguf(open_gguf(write(path / "model.gguf", created | keys)))


def pieces_of(tokenizer: Tokenizer, text: str) -> list[str]:
    ids = tokenizer.encode(text, add_special=False)
    return [tokenizer.token_bytes(id, special=True).decode().replace(" ", "▁") for id in ids]


class TestBestSegmentation:
    def test_equals_exhaustive_search(self, tmp_path: Path) -> None:
        tokenizer = load(tmp_path)
        generator = random.Random(1)
        for _ in range(200):
            text = "".join(generator.choice("ab ") for _ in range(generator.randint(1, 9)))
            escaped = text.replace(" ", "▁")
            best = max(segmentations(escaped), key=lambda segmentation: sum(PIECES[piece] for piece in segmentation))
            actual = pieces_of(tokenizer, text)
            assert "".join(actual) == escaped
            assert sum(PIECES[piece] for piece in actual) == pytest.approx(sum(PIECES[piece] for piece in best))

    def test_unknown_neighbours_are_one_token(self, tmp_path: Path) -> None:
        assert pieces_of(load(tmp_path), "a日本b字") == ["a", "<unk>", "b", "<unk>"]

    def test_without_an_unknown_token(self, tmp_path: Path) -> None:
        tokenizer = load(tmp_path, unknown_token_id=None)
        assert tokenizer.encode("", add_special=True) == [1]  # T5's ids are the default
        assert pieces_of(tokenizer, "日") == ["<unk>"]

    def test_user_defined_tokens_cost_nothing(self, tmp_path: Path) -> None:
        types = Field("ARRAY", [3, 3, 2] + [USER_DEFINED if piece == "aba" else NORMAL for piece in PIECES], "INT32")
        assert pieces_of(load(tmp_path, token_type=types), "abab") == ["aba", "b"]

    def test_unused_tokens_are_matched_but_not_decoded(self, tmp_path: Path) -> None:
        types = Field("ARRAY", [3, 3, 2] + [UNUSED if piece == "aba" else NORMAL for piece in PIECES], "INT32")
        tokenizer = load(tmp_path, {**PIECES, "aba": -1.0}, token_type=types)
        assert tokenizer.encode("aba", add_special=False) == [3 + list(PIECES).index("aba")]
        assert tokenizer.decode(tokenizer.encode("aba")) == ""


def segmentations(text: str) -> list[list[str]]:
    """Return all segmentations of a text into pieces."""
    actual = []
    for n in range(len(text)):
        for boundaries in itertools.combinations(range(1, len(text)), n):
            segmentation = [text[start:end] for start, end in itertools.pairwise((0, *boundaries, len(text)))]
            if all(piece in PIECES for piece in segmentation):
                actual.append(segmentation)
    return actual


@pytest.mark.parametrize(
    ("adds_space", "merges_spaces", "expected"),
    [
        (None, None, "▁▁a▁▁b▁"),
        (False, False, "▁▁a▁▁b▁"),
        (True, False, "▁▁▁a▁▁b▁"),  # in front of the first character that is not a space
        (True, True, "▁a▁b"),
        (False, True, "▁a▁b"),
    ],
)
def test_spaces(tmp_path: Path, adds_space: bool | None, merges_spaces: bool | None, expected: str) -> None:
    tokenizer = load(tmp_path, add_space_prefix=adds_space, remove_extra_whitespaces=merges_spaces)
    assert "".join(pieces_of(tokenizer, "  a  b ")) == expected


class TestCharsmap:
    def test_longest_prefix_match(self) -> None:
        normalize = Charsmap(bytes(charsmap(REPLACED).value)).normalize
        assert normalize("A ab abc abcd aab a") == "a X Xc Y aX a"
        assert normalize("ﬁ\tﬂ\u200b日\0") == "fi ﬂ日\0"
        assert normalize("") == ""

    def test_in_a_vocabulary(self, tmp_path: Path) -> None:
        tokenizer = load(tmp_path, precompiled_charsmap=charsmap(REPLACED))
        assert pieces_of(tokenizer, "A\u200bA") == ["a", "a"]

    def test_no_charsmap(self) -> None:
        assert Charsmap(b"").normalize("Aﬁ") == "Aﬁ"

    def test_broken_charsmaps(self) -> None:
        """A file may have arbitrary bytes: no lookup reads outside of the map."""
        whole = bytes(charsmap(REPLACED).value)
        generator = random.Random(2)
        for size in range(12):
            Charsmap(whole[:size]).normalize("Aab\t")
        for _ in range(300):
            broken = bytearray(whole)
            for _ in range(20):
                broken[generator.randrange(len(broken))] = generator.randrange(256)
            assert isinstance(Charsmap(bytes(broken)).normalize("Aababcd ﬁ\t日"), str)

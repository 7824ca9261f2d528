"""BPE merging compared with a naive implementation; merges of texts without a token; byte fallback."""

import random
from pathlib import Path

import pytest
from synthetic_vocabularies import characters, keys_of, strings, write
from tiny import byte_level_alphabet

from localinfer.gguf.reader import open_gguf
from localinfer.tokenizer import Tokenizer, from_gguf
from localinfer.tokenizer.segmenters.bpe_merger import SHORT_TEXT, BPEMerger

ALPHABET = byte_level_alphabet()


def naive(word: str, merges: list[str]) -> list[str]:
    """Apply the merge of lowest rank, leftmost first, until no pair can be merged."""
    chunks = list(word)
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
    while pairs := [(ranks[pair], i) for i, pair in enumerate(zip(chunks, chunks[1:])) if pair in ranks]:  # noqa: B905,RUF007
        _, i = min(pairs)
        chunks[i : i + 2] = ["".join(chunks[i : i + 2])]
    return chunks


def load(path: Path, merges: list[str], tokens: list[str], pre: str = "gpt-2") -> Tokenizer:
    keys = keys_of("gpt2", ["<s>", "</s>"], tokens, pre=pre, merges=strings(merges), bos_token_id=0)
    return from_gguf(open_gguf(write(path / "model.gguf", keys)))


def test_equals_naive_implementation(tmp_path: Path) -> None:
    generator = random.Random(1)
    created = ["a", "b", "c"]
    merges = []
    for _ in range(40):
        pair = generator.choice(created), generator.choice(created)
        if "".join(pair) not in created:
            created.append("".join(pair))
            merges.append(" ".join(pair))
    tokenizer = load(tmp_path, merges, ALPHABET + created)
    for _ in range(500):
        word = "".join(generator.choice("abc") for _ in range(generator.randint(1, 30)))
        assert [tokenizer.decode([id]) for id in tokenizer.encode(word)] == naive(word, merges)


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe"])
def test_short_texts_have_the_tokens_that_they_have_in_a_long_text(tmp_path: Path, pre: str) -> None:
    """Short texts are merged without the library, which merges this long one; some merges exist twice, and some use or
    make a text that is no token."""
    generator = random.Random(2)
    created = list(ALPHABET)
    merges = []
    for _ in range(400):
        pair = generator.choice([*"abc", *created[len(ALPHABET) :]]), generator.choice("abcĠ")
        merges.append(" ".join(pair))
        if "".join(pair) not in created and generator.random() < 0.9:
            created.append("".join(pair))
    words = ["".join(generator.choice("abc ") for _ in range(generator.randint(1, 30))) + "." for _ in range(100)]
    tokenizer = load(tmp_path, merges, created, pre)
    tokenizer.encode("x" * SHORT_TEXT + "x")
    for word in words:
        short = load(tmp_path, merges, created, pre)
        assert short.encode(word) == tokenizer.encode(word)


def test_the_first_words_are_merged_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = load(tmp_path, ["a b", "ab c"], [*ALPHABET, "ab", "abc"])
    monkeypatch.setattr(BPEMerger, "_build", None)
    assert [tokenizer.decode([id]) for id in tokenizer.encode("abcab")] == ["abc", "ab"]


class TestTextsWithoutToken:
    def test_splits_into_bytes(self, tmp_path: Path) -> None:
        """ "abc" is merged although it is not a token, so "cd" is not merged."""
        tokenizer = load(tmp_path, ["a b", "ab c", "c d"], [*ALPHABET, "ab", "cd"])
        pieces = [tokenizer.decode([id]) for id in tokenizer.encode("abcd ab cd")]
        assert pieces == ["a", "b", "c", "d", " ", "ab", " ", "cd"]

    def test_a_part_without_a_token(self, tmp_path: Path) -> None:
        tokenizer = load(tmp_path, ["a b", "zz yy", " e"], [*ALPHABET, "ab"])
        assert tokenizer.decode(tokenizer.encode("zzyy ab e")) == "zzyy ab e"

    def test_no_control_token_is_made(self, tmp_path: Path) -> None:
        tokenizer = load(tmp_path, ["< /", "</ s", "</s >"], [*ALPHABET, "</", "</s"], pre="superbpe")
        assert [tokenizer.decode([id]) for id in tokenizer.encode("</s>")] == ["</s", ">"]

    def test_byte_without_token_separates_its_neighbours(self, tmp_path: Path) -> None:
        tokenizer = load(tmp_path, ["a b"], [char for char in [*ALPHABET, "ab"] if char != "x"])
        assert [tokenizer.decode([id]) for id in tokenizer.encode("axb ab")] == ["a", "b", " ", "ab"]


class TestCharacters:
    @pytest.mark.parametrize("byte_tokens", [True, False])
    def test_unknown_characters(self, tmp_path: Path, byte_tokens: bool) -> None:
        keys = characters("gemma4", byte_tokens=byte_tokens)
        tokenizer = from_gguf(open_gguf(write(tmp_path / "model.gguf", keys)))
        assert tokenizer.decode(tokenizer.encode("a字z \U0001f600")) == ("a字z \U0001f600" if byte_tokens else "a ")

    def test_runs_of_line_breaks(self, tmp_path: Path) -> None:
        tokenizer = from_gguf(open_gguf(write(tmp_path / "model.gguf", characters("gemma4"))))
        lengths = {n: len(tokenizer.encode("\n" * n, add_special=False)) for n in range(1, 6)}
        assert lengths == {1: 1, 2: 1, 3: 1, 4: 4, 5: 5}

    def test_gemma4_always_begins_with_bos(self, tmp_path: Path) -> None:
        keys = characters("gemma4") | {"add_bos_token": False}
        assert from_gguf(open_gguf(write(tmp_path / "model.gguf", keys))).encode("") == [0]

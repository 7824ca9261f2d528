"""BPE merging compared with a naive implementation; merges of texts without a token; byte fallback; long texts."""

import random
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from locations import CHECKOUT
from naive_bpe import ids_of, merge
from synthetic_vocabularies import BYTE_TOKENS, TEXT, characters, every_pair, keys_of, mixed_letters, strings, write
from tiny import byte_level_alphabet

from localinfer.errors import LocalInferError
from localinfer.gguf.reader import open_gguf
from localinfer.kernels import bpe
from localinfer.tokenizer import Tokenizer, from_gguf, word_splitter
from localinfer.tokenizer.pretokenizers import BETWEEN_WORDS, BY_NAME
from localinfer.tokenizer.segmenters import bpe_merger
from localinfer.tokenizer.segmenters.character_level import OPTIONS

ALPHABET = byte_level_alphabet()
ONE_WORD = "superbpe"  # a pre-tokenizer that splits nothing but digits


def load(
    path: Path, merges: list[str], tokens: list[str], pre: str = "gpt-2", control: Sequence[str] = ("<s>", "</s>")
) -> Tokenizer:
    keys = keys_of("gpt2", control, tokens, pre=pre, merges=strings(merges), bos_token_id=0)
    return from_gguf(open_gguf(write(path / "model.gguf", keys)))


class Vocabulary:
    """A random vocabulary: merges of texts that earlier merges made, in a random order, some twice, some of texts that
    nothing makes; tokens for most texts; single characters and longer texts that are control tokens."""

    def __init__(self, seed: int, letters: str, byte_token: Callable[[int], str], other_tokens: list[str]) -> None:
        generator = random.Random(seed)
        texts, merges = list(letters), []
        for _ in range(generator.randint(1, 120)):
            pair = generator.choice(texts), generator.choice(texts)
            merges.append(" ".join(pair))
            if len("".join(pair)) < 40:
                texts.append("".join(pair))
        merges += [*generator.choices(merges, k=generator.randint(0, 10)), "nothing makes", "these texts"]
        generator.shuffle(merges)
        distinct = list(dict.fromkeys(texts))
        has_token = generator.choice((0.5, 0.9, 1))
        normal = [text for text in distinct if generator.random() < has_token]
        self.control = ["<s>", *(text for text in distinct if generator.random() < 0.05)]
        self.merges, self.tokens = merges, [*other_tokens, *normal]
        self._letters, self._generator, self._byte_token = letters, generator, byte_token

    def ids(self, text: str) -> list[int]:
        """Return the ids of a text that is one word."""
        tokens = list(dict.fromkeys((*self.control, *self.tokens)))
        known = {token: id for id, token in enumerate(tokens) if token not in self.control}
        return ids_of(merge(text, self.merges, self.control), known, self._byte_token)

    def words(self, n: int) -> list[str]:
        lengths = [1, 2, *(self._generator.randint(1, 60) for _ in range(n)), 500]
        return ["".join(self._generator.choices(self._letters, k=length)) for length in lengths]


class TestAsTheNaiveImplementation:
    @pytest.mark.parametrize("seed", range(40))
    def test_bytes(self, tmp_path: Path, seed: int) -> None:
        """Bytes are written as one or two bytes of UTF-8, and some have no token."""
        generator = random.Random(seed)
        made = Vocabulary(
            seed, "abĠé", lambda byte: chr(byte) if byte < 128 else "", generator.sample(ALPHABET, 200)
        )
        tokenizer = load(tmp_path, made.merges, made.tokens, ONE_WORD, made.control)
        for word in made.words(20):
            text = bytes(map(ALPHABET.index, word)).decode("utf-8", "replace")
            written = "".join(ALPHABET[byte] for byte in text.encode())
            assert tokenizer.encode(text, add_special=False) == made.ids(written), (word, made.merges)

    @pytest.mark.parametrize("seed", range(40))
    def test_characters(self, tmp_path: Path, seed: int) -> None:
        """Characters have one to four bytes. Some byte tokens may be missing."""
        byte_tokens = BYTE_TOKENS if seed % 2 else random.Random(seed).sample(BYTE_TOKENS, 200)
        made = Vocabulary(seed, "abé字😀▁", "<0x{:02X}>".format, byte_tokens)
        tokenizer = load(tmp_path, made.merges, made.tokens, "sarvam-moe", made.control)
        for word in made.words(20):
            assert tokenizer.encode(word, add_special=False) == made.ids(word), (word, made.merges)
            assert tokenizer.encode(f"\n{word}", add_special=False) == made.ids("\n") + made.ids(word)

    def test_words_that_are_tokens_are_not_merged_if_the_pre_tokenizer_says_so(self, tmp_path: Path) -> None:
        tokens = [*ALPHABET, "ab", "abc"]
        for pre, expected in (("llama-bpe", ["abc"]), ("gpt-2", ["ab", "c"])):
            tokenizer = load(tmp_path, ["a b", "x y"], tokens, pre)
            assert [tokenizer.decode([id]) for id in tokenizer.encode("abc", add_special=False)] == expected

    @pytest.mark.parametrize("n", [1, 2, 3, 63, 1000, 100_000])
    def test_equal_characters(self, tmp_path: Path, n: int) -> None:
        """Sixteen equal characters are a token; a longer word has every length of tokens at its end."""
        sizes = [1, 2, 4, 8, 16]
        merges = [f"{'a' * size} {'a' * size}" for size in sizes[:-1]]
        tokenizer = load(tmp_path, merges, [*ALPHABET, *("a" * size for size in sizes[1:])], ONE_WORD)
        pieces = [tokenizer.decode([id]) for id in tokenizer.encode("a" * n, add_special=False)]
        rest = [size for size in reversed(sizes[:-1]) if n % 16 & size]
        assert list(map(len, pieces)) == [16] * (n // 16) + rest

    def test_a_merge_for_every_length(self, tmp_path: Path) -> None:
        """A token grows by one character at a time, and is longer than the eight bytes that are compared at once."""
        merges = [f"{'a' * size} a" for size in range(1, 100)]
        tokenizer = load(tmp_path, merges, [*ALPHABET, *("a" * size for size in range(2, 101))], ONE_WORD)
        for n in (99, 100, 101, 10_000):
            actual = [len(tokenizer.decode([id])) for id in tokenizer.encode("a" * n, add_special=False)]
            assert actual == list(map(len, merge("a" * n, merges)))[: len(actual)] if n < 200 else sum(actual) == n


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

    def test_a_character_that_is_a_control_token_is_not_merged(self, tmp_path: Path) -> None:
        tokenizer = load(tmp_path, ["a b", "b c"], [*ALPHABET, "ab", "bc"], control=["<s>", "b"])
        assert tokenizer.encode("abc", add_special=False) == [tokenizer.encode(each)[-1] for each in "ac"]

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


class TestLongTexts:
    @pytest.mark.parametrize("name", [*BY_NAME, *OPTIONS])
    def test_parts_have_the_tokens_of_the_whole_text(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        keys = characters(name) if name in OPTIONS else every_pair() | {"pre": name}
        tokenizer = from_gguf(open_gguf(write(tmp_path / "made.gguf", keys)))
        text = TEXT + " B\nB ".join(mixed_letters(200)) + "it's a test\nof words  and\n\nlines 1234 tests it\n" * 20
        whole = tokenizer.encode(text)
        for part, batch in ((3, 1 << 16), (50, 40), (50, 1 << 16)):
            monkeypatch.setattr(word_splitter, "PART", part)
            monkeypatch.setattr(word_splitter, "SHORT", batch)
            monkeypatch.setattr(bpe_merger, "BATCH", batch)
            assert tokenizer.encode(text) == whole

    def test_parts_are_short(self) -> None:
        parts = list(word_splitter.cut("some words\n" * 100_000, re.compile(BETWEEN_WORDS)))
        assert "".join(parts) == "some words\n" * 100_000
        assert max(map(len, parts)) <= 2 * word_splitter.PART

    def test_a_text_without_boundaries_is_not_cut(self) -> None:
        text = "字" * 100_000
        assert list(word_splitter.cut(text, re.compile(BETWEEN_WORDS))) == [text]

    def test_several_threads(self, tmp_path: Path) -> None:
        tokenizer = from_gguf(open_gguf(write(tmp_path / "made.gguf", every_pair() | {"pre": "gpt-2"})))
        texts = [text * 20 for text in mixed_letters(40)]
        expected = [from_gguf(open_gguf(tmp_path / "made.gguf")).encode(text) for text in texts]
        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(tokenizer.encode, texts)) == expected

    def test_other_threads_run_meanwhile(self, tmp_path: Path) -> None:
        """A word of some million characters takes about a second."""
        tokenizer = load(tmp_path, ["a a", "aa aa"], [*ALPHABET, "aa", "aaaa"], ONE_WORD)
        text = "a" * 3_000_000
        thread = threading.Thread(target=tokenizer.encode, args=(text,))
        thread.start()
        turns = 0
        while thread.is_alive():
            thread.join(0.001)
            turns += 1
        assert turns > 20


SHORTENED = """
import os, sys
from pathlib import Path
from localinfer.gguf.reader import open_gguf
from localinfer.tokenizer import from_gguf

path = Path(sys.argv[1])
tokenizer = from_gguf(open_gguf(path))
tokenizer.encode("ab")
os.truncate(path, 0)
print(tokenizer.encode("a b abc"))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be shortened there")
def test_a_file_that_becomes_shorter(tmp_path: Path) -> None:
    """Reading the mapped file would end the process."""
    expected = load(tmp_path, ["a b"], [*ALPHABET, "ab"]).encode("a b abc")
    command = [sys.executable, "-c", SHORTENED, str(tmp_path / "model.gguf")]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    assert done.stdout == f"{expected}\n", done.stderr


def texts_of_one_slot(n: int) -> list[str]:
    """Return distinct texts of eight bytes whose hashes end in 16 zeros, as only somebody who tries can make them."""
    inverse = np.uint64(pow(bpe.MULTIPLIER, -1, 1 << 64))
    words = np.random.default_rng(1).integers(0, 1 << 48, 1 << 22, np.uint64) << np.uint64(16)
    for _ in range(2):  # of `bpe.scramble`
        words = (words ^ words >> np.uint64(32)) * inverse
    texts = (words ^ np.uint64(8)).astype("<u8").view(np.uint8).reshape(-1, 8)
    printable = texts[((texts > 0x20) & (texts < 0x7F)).all(axis=1)]
    return sorted({row.tobytes().decode() for row in printable})[:n]


def test_tokens_whose_hashes_are_equal(tmp_path: Path) -> None:
    """Of a million such tokens, making the table would take an hour."""
    texts = texts_of_one_slot(1000)
    assert len(texts) == 1000
    tokenizer = load(tmp_path, ["a b"], [*ALPHABET, *texts])
    with pytest.raises(LocalInferError, match=r"tokenizer\.ggml\.tokens: .* same hash"):
        tokenizer.encode("a")

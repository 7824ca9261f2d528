"""Byte-level BPE: every pre-tokenizer, and the byte alphabet."""

from functools import partial
from pathlib import Path

import pytest
from tiny_tokenizers import Loader, strings, tiny_tokenizer

from localinfer.tokenizer.pretokenizers import BY_NAME
from localinfer.tokenizer.segmenters.byte_level import BYTE_OF


@pytest.fixture
def load(tmp_path: Path) -> Loader:
    """Return a function that loads a tiny model's tokenizer: see `tiny_tokenizer`."""
    return partial(tiny_tokenizer, tmp_path / "model.gguf")


class TestPreTokenizers:
    @pytest.mark.parametrize("name", BY_NAME)
    def test_every_name_works(self, load: Loader, name: str) -> None:
        tokenizer = load("bpe", pre=name)
        text = "Hello, it's  the 12345th\r\n\t  ＦＯＯ日本 don’t — (x)"
        assert tokenizer.decode(tokenizer.encode(text)) == text

    def test_words_and_digits(self, load: Loader) -> None:
        """A merge across a word boundary shows where the boundaries are: GPT-2 groups digits, SmolLM does not."""
        cases = {"gpt-2": 1, "smollm": 2, "qwen2": 2, "llama-bpe": 1}
        for name, expected in cases.items():
            tokenizer = load("bpe", {"he": "12"}, pre=name, merges=strings(["1 2"]), add_bos_token=False)
            assert len(tokenizer.encode("12")) == expected, name

    def test_first_token_by_default(self, load: Loader) -> None:
        assert load("bpe", pre="llama-bpe", add_bos_token=None).encode("") == [1]
        assert load("bpe", pre="smollm", add_bos_token=None).encode("") == []

    def test_byte_alphabet(self) -> None:
        assert sorted(BYTE_OF.values()) == [bytes([byte]) for byte in range(256)]
        assert BYTE_OF["Ġ"] == b" "
        assert BYTE_OF["Ċ"] == b"\n"
        assert BYTE_OF["é"] == b"\xe9"

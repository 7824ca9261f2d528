"""Malicious and unusual vocabularies: a one-line error that names the key, or a working tokenizer."""

import contextlib
import random
import time
from functools import partial
from pathlib import Path
from typing import Any

import malicious_files
import pytest
from tiny import Field, n_tokens
from tiny_tokenizers import (
    KEY,
    NORMAL,
    ONE_MERGE,
    TINY,
    UNKNOWN,
    Loader,
    numbers,
    of_types,
    strings,
    tiny_tokenizer,
    types_with,
)

from localinfer.errors import LocalInferError, UnsupportedError
from localinfer.gguf.reader import open_gguf
from localinfer.tokenizer import Tokenizer, from_gguf

U32, I32, F32 = "UINT32", "INT32", "FLOAT32"
N = {kind: n_tokens(vocabulary()) for kind, (_, vocabulary) in TINY.items()}
HUGE = 2**32 - 1

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    # kind, changed keys, the error after "<path>: tokenizer.ggml."
    ("bpe", {"model": None}, "model: is missing"),
    ("bpe", {"model": 3}, "model: expected a string"),
    ("bpe", {"tokens": None}, "tokens: is missing"),
    ("bpe", {"tokens": "a"}, "tokens: expected an array of strings"),
    ("spm", {"tokens": numbers([1, 2, 3], U32)}, "tokens: expected an array of strings"),
    ("bpe", {"tokens": strings(["x" * 70000])}, "tokens: token 0 has 70000 bytes"),
    ("bpe", {"tokens": strings(["a", "b", "a"]), "token_type": None}, "tokens: tokens 0 and 2 are the same, b'a'"),
    ("spm", {"tokens": strings(["a", "b\n", "b\n"]), "token_type": None, "bos_token_id": 0, "eos_token_id": 0,
             "unknown_token_id": 0}, r"tokens: tokens 1 and 2 are the same, b'b\n'"),
    ("spm", {"tokens": Field("ARRAY", [b"a", b"\xff", b"\xff"], "STRING"), "token_type": None, "bos_token_id": 0,
             "eos_token_id": 0, "unknown_token_id": 0}, r"tokens: tokens 1 and 2 are the same, b'\xff'"),
    ("bpe", {"tokens": Field("ARRAY", [b"a", b"\xff"], "STRING"), "token_type": None, "bos_token_id": 0,
             "eos_token_id": 0}, "tokens: not every string is UTF-8"),
    ("bpe", {"token_type": numbers([1] * (N["bpe"] - 1), I32)}, f"token_type: {N['bpe'] - 1} values for"),
    ("spm", {"token_type": numbers([1] * 5, I32)}, "token_type: 5 values for"),
    ("spm", {"token_type": numbers([1.0] * N["spm"], F32)}, "token_type: the types of tokens are integers"),
    ("spm", {"scores": None}, "scores: is missing"),
    ("spm", {"scores": numbers([0.0] * 7, F32)}, "scores: 7 values for"),
    ("spm", {"scores": "high"}, "scores: expected an array of numbers"),
    ("spm", {"scores": numbers([float("nan")] * N["spm"], F32)}, "scores: the score of token 0 is nan"),
    ("spm", {"scores": numbers([0.0, float("-inf")] * N["spm"], F32)}, "scores: the score of token 1 is -inf"),
    ("bpe", {"merges": None}, "merges: is missing"),
    ("bpe", {"merges": numbers([1], U32)}, "merges: expected an array of strings"),
    ("bpe", {"merges": strings(["h e", "he"])}, "merges: merge 1 is b'he', not two parts"),
    ("bpe", {"merges": strings(["h e", "a", "a b c"])}, "merges: merge 1 is b'a', not two parts"),
    ("bpe", {"merges": strings(["h e", "a b c"])}, "merges: merge 1 is b'a b c', not two parts"),
    ("bpe", {"merges": strings(["h\0 e"])}, r"merges: merge 0 is b'h\x00 e', not two parts"),
    ("bpe", {"merges": Field("ARRAY", [b"\xff e"], "STRING")}, "merges: not every string is UTF-8"),
    ("bpe", {"bos_token_id": Field(I32, -1)}, "bos_token_id: -1 is negative"),
    ("spm", {"eos_token_id": Field("STRING", "1")}, "eos_token_id: expected an integer"),
    ("bpe", {"bos_token_id": None, "add_bos_token": True}, "bos_token_id: missing, but add_bos_token is true"),
    ("bpe", {"eos_token_id": None, "add_eos_token": True}, "eos_token_id: missing, but add_eos_token is true"),
    ("bpe", {"add_bos_token": 1}, "add_bos_token: expected a bool"),
    ("spm", {"add_space_prefix": 1}, "add_space_prefix: expected a bool"),
    ("bpe", {"suppress_tokens": "7"}, "suppress_tokens: expected an array of numbers"),
    ("bpe", {"suppress_tokens": numbers([7.0], F32)}, "suppress_tokens: the ids of tokens are integers"),
    ("spm", {"suppress_tokens": numbers(list(range(N["spm"])), I32)}, "suppress_tokens: lists all tokens"),
]  # fmt: skip
UNSUPPORTED: list[tuple[str, dict[str, Any], str]] = [
    ("bpe", {"model": "plamo3"}, "model: 'plamo3' is not supported; did you mean plamo2?"),
    ("bpe", {"model": "gpt2\0"}, r"model: 'gpt2\x00' is not supported; did you mean gpt2?"),
    ("bpe", {"model": "no_vocab"}, "model: this file has no vocabulary"),
    ("bpe", {"pre": "gpt-9"}, "pre: 'gpt-9' is not supported; did you mean gpt-2?"),
    ("bpe", {"pre": "Llama_BPE"}, "pre: 'Llama_BPE' is not supported; did you mean llama-bpe?"),
    ("bpe", {"model": "hybriddna", "pre": "gemma4"}, "pre: 'gemma4' is not supported"),
    ("bpe", {"pre": "\x1b[2J" * 10_000}, r"pre: '\x1b[2J\x1b[2J"),
]


@pytest.fixture
def load(tmp_path: Path) -> Loader:
    """Return a function that loads a tiny model's tokenizer: see `tiny_tokenizer`."""
    return partial(tiny_tokenizer, tmp_path / "model.gguf")


class TestMaliciousMetadata:
    @pytest.mark.parametrize(("kind", "keys", "message"), REFUSED)
    def test_refused(self, load: Loader, tmp_path: Path, kind: str, keys: dict[str, Any], message: str) -> None:
        with pytest.raises(LocalInferError) as caught:
            load(kind, **keys)
        self.is_one_line(caught.value, tmp_path, message)
        assert caught.value.exit_code == 1

    @pytest.mark.parametrize(("kind", "keys", "message"), UNSUPPORTED)
    def test_unsupported(self, load: Loader, tmp_path: Path, kind: str, keys: dict[str, Any], message: str) -> None:
        with pytest.raises(UnsupportedError) as caught:
            load(kind, **keys)
        self.is_one_line(caught.value, tmp_path, message)

    @pytest.mark.parametrize("text", ["<0x-1>", "<0xZZ>", "<0x100>", "<0x>", "<0x1>", "<0xff>", "<>", "A"])
    def test_invalid_byte_tokens(self, load: Loader, tmp_path: Path, text: str) -> None:
        with pytest.raises(LocalInferError) as caught:
            load("spm", {"<0x41>": text})
        self.is_one_line(caught.value, tmp_path, f"tokens: token {6 + 0x41} is of type byte, but reads b'{text}'")

    def test_missing_byte_token(self, load: Loader, tmp_path: Path) -> None:
        with pytest.raises(LocalInferError) as caught:
            load("spm", token_type=types_with("spm", {"<0x41>": NORMAL}))
        self.is_one_line(caught.value, tmp_path, "tokens: the byte token <0x41> is missing (1 of 256 are)")

    @pytest.mark.filterwarnings("ignore:.*the key does not count")
    @pytest.mark.parametrize("kind", TINY)
    def test_random_bytes(self, tmp_path: Path, kind: str) -> None:
        """Random changes of the vocabulary's bytes result in a one-line error or a working tokenizer."""
        generator = random.Random(7)
        path = TINY[kind][0](tmp_path / "model.gguf", n_layer=1)
        content, end = path.read_bytes(), open_gguf(path).data_offset
        for _ in range(200):
            changed = bytearray(content)
            for _ in range(generator.choice((1, 1, 3))):
                offset = generator.randrange(content.index(KEY.encode()), end)
                changed[offset] = generator.choice((0, 0x20, 0xFF, generator.randrange(256)))
            path.write_bytes(changed)
            with contextlib.suppress(LocalInferError):
                tokenizer = from_gguf(open_gguf(path))
                ids = tokenizer.encode("Hello, the <|im_end|> 日本\0 ", parse_special=True)
                assert all(0 <= id < tokenizer.n_vocab for id in ids)
                tokenizer.decode(ids)

    def is_one_line(self, error: LocalInferError, tmp_path: Path, message: str) -> None:
        text = str(error)
        assert text.startswith(f"{tmp_path / 'model.gguf'}: {KEY}{message}"), text
        assert text.isprintable()
        assert len(text) < 300 + len(str(tmp_path))


def test_suppressed_tokens_that_do_not_exist_are_ignored(load: Loader) -> None:
    assert load("bpe", suppress_tokens=numbers([-1, 5, 7, 5, N["bpe"]], I32)).suppressed == {5, 7}
    assert load("bpe").suppressed == frozenset()


class TestArrayLimits:
    """Files that the `gguf` package would not write."""

    def load(self, path: Path, tokens: bytes, n: int, merges: int = 0) -> Tokenizer:
        path.write_bytes(
            malicious_files.container(
                self.text("model", "gpt2"),
                self.text("pre", "gpt-2"),
                malicious_files.kv(
                    KEY + "merges", malicious_files.ARRAY, malicious_files.array(malicious_files.STRING, merges)
                ),
                malicious_files.kv(
                    KEY + "tokens", malicious_files.ARRAY, malicious_files.array(malicious_files.STRING, n, tokens)
                ),
            )
        )
        return from_gguf(open_gguf(path))

    def text(self, key: str, value: str) -> bytes:
        return malicious_files.kv(KEY + key, malicious_files.STRING, malicious_files.string(value))

    def test_no_tokens(self, tmp_path: Path) -> None:
        with pytest.raises(LocalInferError, match="tokens: 0 tokens"):
            self.load(tmp_path / "model", b"", 0)

    def test_token_ends_at_the_end_of_the_file(self, tmp_path: Path) -> None:
        tokens = malicious_files.string("a") + malicious_files.string("<")
        assert self.load(tmp_path / "model", tokens, 2).encode("a<b") == [0, 1]

    def test_only_empty_tokens(self, tmp_path: Path) -> None:
        with pytest.raises(LocalInferError, match="tokens: 5000 tokens are empty"):
            self.load(tmp_path / "model", malicious_files.string("") * 5000, 5000)

    def test_too_many_tokens(self, tmp_path: Path) -> None:
        with pytest.raises(LocalInferError, match="tokens: 2000000 tokens"):
            self.load(tmp_path / "model", malicious_files.string("") * 2_000_000, 2_000_000)


class TestOddButAccepted:
    def test_without_types_and_ids(self, load: Loader) -> None:
        tokenizer = load("bpe", token_type=None, bos_token_id=None, eos_token_id=None, unknown_token_id=None)
        assert (tokenizer.bos, tokenizer.eos) == (None, None)
        assert tokenizer.eog == {0, 2}  # known by their texts
        assert tokenizer.decode(tokenizer.encode("Hello the")) == "Hello the"

    def test_default_ids_of_sentencepiece(self, load: Loader) -> None:
        tokenizer = load("spm", bos_token_id=None, eos_token_id=None, add_bos_token=None)
        assert (tokenizer.bos, tokenizer.eos) == (1, 2)
        assert tokenizer.encode("") == [1]

    @pytest.mark.parametrize("kind", TINY)
    @pytest.mark.parametrize("name", ["bos", "eos", "eot", "eom", "unknown"])
    @pytest.mark.parametrize("beyond", [0, 5, HUGE])
    def test_nonexistent_special_tokens(self, load: Loader, kind: str, name: str, beyond: int) -> None:
        """Such ids are ignored: some files have -1 for "none"."""
        id = max(N[kind], beyond)
        keys = {"add_bos_token": False} if kind == "bpe" else {}
        with pytest.warns(UserWarning, match=f"{name}_token_id: there is no token {id}"):
            tokenizer = load(kind, **{f"{name}_token_id": id}, **keys)
        assert tokenizer.decode(tokenizer.encode("Hello")) == "Hello"
        assert id not in tokenizer.eog

    def test_without_a_pre_tokenizer(self, load: Loader) -> None:
        with pytest.warns(UserWarning, match=r"tokenizer\.ggml\.pre: is missing"):
            tokenizer = load("bpe", pre=None)
        assert tokenizer.encode("the 1234") == load("bpe", pre="default").encode("the 1234")

    def test_no_bos_without_bos_id(self, load: Loader) -> None:
        """llama-bpe adds BOS unless the file disables it."""
        assert load("bpe", pre="llama-bpe", bos_token_id=None, add_bos_token=None).encode("") == []

    def test_nul_character(self, load: Loader) -> None:
        tokenizer = load("bpe", tokens=strings(["a", "b\0c", "d"]), token_type=None, bos_token_id=0, eos_token_id=0,
                         unknown_token_id=0, merges=ONE_MERGE)  # fmt: skip
        assert tokenizer.encode("ad") == [0, 2]

    def test_last_token(self, load: Loader) -> None:
        assert load("spm", add_eos_token=True).encode("a")[-1] == 1

    @pytest.mark.parametrize("kind", TINY)
    def test_empty_tokens(self, load: Loader, kind: str) -> None:
        tokenizer = load(kind, {"in": "", "ing": ""}, merges=ONE_MERGE)
        assert tokenizer.decode(tokenizer.encode("in the inn")) == "in the inn"

    def test_padding_is_never_used(self, load: Loader) -> None:
        load("spm", padding_token_id=HUGE)

    def test_more_scores_than_tokens(self, load: Loader) -> None:
        load("spm", scores=numbers([-1.0] * (N["spm"] + 3), F32))

    def test_unknown_characters_without_byte_tokens(self, load: Loader) -> None:
        tokens = ["<unk>", "▁", "a", "b"]
        keys = of_types(tokens, [UNKNOWN, NORMAL, NORMAL, NORMAL])
        tokenizer = load("spm", **keys, scores=numbers([0.0] * 4, F32), bos_token_id=None, eos_token_id=None,
                         unknown_token_id=None, add_bos_token=False)  # fmt: skip
        assert tokenizer.encode("a b日") == [2, 1, 3, 0]

    def test_many_identical_merges(self, load: Loader) -> None:
        begin = time.monotonic()
        tokenizer = load("bpe", merges=strings(["h e"] * 300_000))
        assert tokenizer.decode(tokenizer.encode("the")) == "the"
        assert time.monotonic() - begin < 20

    def test_character_outside_the_byte_alphabet(self, load: Loader) -> None:
        tokenizer = load("bpe", {"he": "日本"}, merges=ONE_MERGE)
        assert "日本" in [tokenizer.decode([id]) for id in range(tokenizer.n_vocab)]


class TestEndOfGeneration:
    def ends(self, load: Loader, *texts: str, **keys: Any) -> list[str]:
        words = ("he", "in", "er", "an", "re", "ou", "ll")
        tokenizer = load("bpe", dict(zip(words, texts, strict=False)), merges=ONE_MERGE, **keys)
        shown = {tokenizer.decode([id], special=True) for id in tokenizer.eog}
        return sorted(shown - {"<|endoftext|>", "<|im_end|>"})

    def test_by_text(self, load: Loader) -> None:
        assert self.ends(load, "<|eot_id|>", "<turn>", "</s>") == ["</s>", "<|eot_id|>"]

    def test_other_eog_token_makes_s_normal_text(self, load: Loader) -> None:
        assert self.ends(load, "</s>", "<|plamo:eos|>", eot_token_id=Field(U32, self.id_of("in"))) == ["<|plamo:eos|>"]
        assert self.ends(load, "</s>", "<|plamo:eos|>") == ["</s>"]

    def id_of(self, token: str) -> int:
        tokens: list[str] = TINY["bpe"][1]()[KEY + "tokens"].value
        return tokens.index(token)

    def test_by_key(self, load: Loader) -> None:
        assert self.ends(load, eot_token_id=3, eom_token_id=4, fim_pad_token_id=5) == ["\0", "\1", "\2"]

    def test_fill_in_the_middle(self, load: Loader) -> None:
        texts = ("<|fim_prefix|>", "<|fim_pad|>", "<PAD>", "<|file_sep|>", "<reponame>")
        assert self.ends(load, *texts) == ["<reponame>", "<|file_sep|>", "<|fim_pad|>"]

    def test_key_overrides_known_texts(self, load: Loader) -> None:
        assert self.ends(load, "<|fim_pad|>", fim_pad_token_id=5) == ["\2"]

    def test_end_of_one_message_of_several(self, load: Loader) -> None:
        assert self.ends(load, "<|end|>", "<|return|>", "<|call|>") == ["<|call|>", "<|return|>"]
        assert self.ends(load, "<|end|>", "<|return|>") == ["<|end|>", "<|return|>"]
        assert self.ends(load, "</s>", "<|tool_response>") == ["<|tool_response>"]


def test_fill_in_the_middle_tokens(tmp_path: Path) -> None:
    """Those that the file names, else those with known texts."""
    replaced = {"in": "<|fim_prefix|>", "on": "<|fim_suffix|>", "er": "<|fim_middle|>", "an": "<|file_sep|>"}
    ids = {token: id for id, token in enumerate(TINY["spm"][1]()[KEY + "tokens"].value)}
    known = tiny_tokenizer(tmp_path / "known.gguf", "spm", replaced)
    assert known.fim == {"pre": ids["in"], "suf": ids["on"], "mid": ids["er"], "sep": ids["an"]}
    named = tiny_tokenizer(tmp_path / "named.gguf", "spm", replaced, fim_pre_token_id=Field("UINT32", ids["he"]))
    assert named.fim == known.fim | {"pre": ids["he"]}

"""The tokenizers: llama.cpp's ids for the real models, and one line for a vocabulary that cannot work."""

import contextlib
import hashlib
import json
import random
import re
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import attacks
import pytest
from tiny import Field, bpe_vocabulary, n_tokens, spm_vocabulary, tiny_gemma3, tiny_llama
from tokenizer_texts import random_texts, tricky

from cli import __main__ as main
from localinfer.errors import LocalInferError, Unsupported, UsageError
from localinfer.gguf import open_gguf
from localinfer.tokenizer import Tokenizer, from_gguf
from localinfer.tokenizer.byte_level import BYTE_OF
from localinfer.tokenizer.pretokenizers import NAMED

DATA = Path(__file__).with_name("data")
MODELS = ("smollm2", "gemma3")
KEY = "tokenizer.ggml."
TINY = {"bpe": (tiny_llama, bpe_vocabulary), "spm": (tiny_gemma3, spm_vocabulary)}
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4

Loader = Callable[..., Tokenizer]


@pytest.fixture(scope="session", params=MODELS)
def real(request: pytest.FixtureRequest) -> tuple[str, Tokenizer]:
    path: Path = request.getfixturevalue(request.param)
    return request.param, from_gguf(open_gguf(path))


@pytest.fixture
def load(tmp_path: Path) -> Loader:
    """A tiny model's tokenizer, where some tokens are replaced, and keys of tokenizer.ggml set."""

    def tiny(kind: str, replaced: dict[str, str] | None = None, **keys: Any) -> Tokenizer:
        write, vocabulary = TINY[kind]
        changes = {KEY + key: value for key, value in keys.items()}
        if replaced:
            old = vocabulary()[KEY + "tokens"].value
            changes[KEY + "tokens"] = strings([replaced.get(token, token) for token in old])
        return from_gguf(open_gguf(write(tmp_path / "model.gguf", n_layer=1, **changes)))

    return tiny


def strings(values: list[str]) -> Field:
    return Field("ARRAY", values, "STRING")


ONE_MERGE = strings(["o n"])  # where a test needs other tokens than merges make; an array may not be empty


def numbers(values: list[float], element: str) -> Field:
    return Field("ARRAY", values, element)


def types_with(kind: str, changed: dict[str, int]) -> Field:
    """The types of a tiny vocabulary, with other ones for some tokens."""
    vocabulary = TINY[kind][1]()
    pairs = zip(vocabulary[KEY + "tokens"].value, vocabulary[KEY + "token_type"].value, strict=True)
    return numbers([changed.get(token, old) for token, old in pairs], "INT32")


# ------------------------------------------------------------------------------------- llama.cpp's ids


def fixture(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((DATA / f"tokenizer_{name}.json").read_text())
    return loaded


class TestAsLlamaCpp:
    def test_ids(self, real: tuple[str, Tokenizer]) -> None:
        name, tokenizer = real
        for case in fixture(name)["texts"]:
            text = case["text"]
            assert tokenizer.encode(text, add_special=False) == case["plain"], ascii(text)
            assert tokenizer.encode(text, parse_special=True) == case["parsed"], ascii(text)

    def test_first_token(self, real: tuple[str, Tokenizer]) -> None:
        name, tokenizer = real
        bos = {"smollm2": [], "gemma3": [2]}[name]
        assert tokenizer.encode("") == bos
        assert tokenizer.encode("a b") == bos + tokenizer.encode("a b", add_special=False)

    def test_pieces(self, real: tuple[str, Tokenizer]) -> None:
        name, tokenizer = real
        for mode, digest in fixture(name)["pieces"].items():
            pieces = (tokenizer.token_bytes(id, special=mode == "shown") for id in range(tokenizer.n_vocab))
            all_pieces = b"".join(b"%d %b" % (len(piece), piece) for piece in pieces)
            assert hashlib.sha256(all_pieces).hexdigest() == digest, mode

    def test_ends_of_generation(self, real: tuple[str, Tokenizer]) -> None:
        name, tokenizer = real
        assert tokenizer.eog == set(fixture(name)["eog"])
        assert tokenizer.eos in tokenizer.eog

    def test_the_list_of_texts_is_the_recorded_one(self) -> None:
        for name in MODELS:
            assert [case["text"] for case in fixture(name)["texts"]] == tricky()


# ----------------------------------------------------------------------------------------- properties


LOST = {  # characters that the vocabularies cannot write, neither ours nor llama.cpp's
    "smollm2": re.compile("[\x00-\x08\x0e-\x1f\U00040000-\U000bffff]"),  # some of their bytes have no token
    "gemma3": re.compile("▁"),  # is how a space is written
}


def texts(name: str, seed: int, n: int) -> list[str]:
    """Random ones that can be had back."""
    return [LOST[name].sub("", text) for text in [*islice(random_texts(seed), n), *tricky()]]


class TestRoundTrip:
    def test_decode_undoes_encode(self, real: tuple[str, Tokenizer]) -> None:
        name, tokenizer = real
        for text in texts(name, seed=1, n=300):
            assert tokenizer.decode(tokenizer.encode(text)) == text

    @pytest.mark.parametrize("kind", TINY)
    @pytest.mark.parametrize(
        "text", ["", "Hello", " a  b ", "\0\x04\x1b", "日本 é ß 😀", "<|im_end|><eos>", "\U0010ffff"]
    )
    def test_tiny(self, load: Loader, kind: str, text: str) -> None:
        tokenizer = load(kind)
        assert tokenizer.decode(tokenizer.encode(text)) == text

    def test_a_space_that_was_added_is_taken_away(self, load: Loader) -> None:
        tokenizer = load("spm", add_space_prefix=True)
        for text in ("the", " the", ""):
            assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.encode("the") == [2, *tokenizer.encode("▁the", add_special=False)[1:]]

    @pytest.mark.parametrize("kind", TINY)
    def test_lone_surrogates(self, load: Loader, kind: str) -> None:
        tokenizer = load(kind)
        assert tokenizer.decode(tokenizer.encode("a\ud83d\ude00b\ud83dc\udc80")) == "a😀b\ufffdc\ufffd"

    def test_no_such_token(self, load: Loader) -> None:
        tokenizer = load("bpe")
        for id in (-1, tokenizer.n_vocab, 10**12):
            with pytest.raises(UsageError, match=f"no token {id}"):
                tokenizer.decode([id])


class TestStreaming:
    def test_only_whole_characters(self, real: tuple[str, Tokenizer]) -> None:
        name, tokenizer = real
        for text in texts(name, seed=2, n=200):
            stream = tokenizer.stream()
            parts = [stream.push(id) for id in tokenizer.encode(text)]
            assert "".join(parts) == text  # U+FFFD only where the text has it
            assert stream.flush() == ""

    def test_random_tokens(self, real: tuple[str, Tokenizer]) -> None:
        """Whatever a model says: pieces add up to the whole, with one U+FFFD a broken character."""
        _, tokenizer = real
        generator = random.Random(3)
        for _ in range(200):
            ids = [generator.randrange(tokenizer.n_vocab) for _ in range(30)]
            stream = tokenizer.stream(special=True)
            parts = [stream.push(id) for id in ids] + [stream.flush()]
            assert "".join(parts) == tokenizer.decode(ids, special=True)

    @pytest.mark.parametrize("kind", TINY)
    def test_bytes_wait_for_their_character(self, load: Loader, kind: str) -> None:
        tokenizer = load(kind)
        ids = tokenizer.encode("😀", add_special=False)
        stream = tokenizer.stream()
        assert [stream.push(id) for id in ids] == ["", "", "", "😀"]
        assert stream.push(ids[0]) == ""
        assert stream.push(tokenizer.encode("A", add_special=False)[0]) == "\ufffdA"
        assert stream.push(ids[0]) == ""
        assert stream.flush() == "\ufffd"
        assert stream.flush() == ""


class TestSpecialTokens:
    @pytest.mark.parametrize(("kind", "text"), [("bpe", "<|im_end|>"), ("spm", "<end_of_turn>")])
    def test_only_when_asked(self, load: Loader, kind: str, text: str) -> None:
        tokenizer = load(kind)
        special = tokenizer.encode(f"Hello{text}", add_special=False, parse_special=True)[-1]
        assert special in tokenizer.eog
        assert special not in tokenizer.encode(f"Hello{text}")
        assert tokenizer.decode([special]) == ""
        assert tokenizer.decode([special], special=True) == text

    def test_no_text_becomes_a_control_token(self, real: tuple[str, Tokenizer]) -> None:
        _, tokenizer = real
        hidden = {id for id in range(tokenizer.n_vocab) if not tokenizer.token_bytes(id)}
        assert len(hidden) > 10
        for id in hidden:
            spelled = tokenizer.token_bytes(id, special=True).decode()
            assert not hidden & set(tokenizer.encode(f"a{spelled} {spelled}", add_special=False))

    def test_merges_do_not_make_control_tokens(self, load: Loader) -> None:
        """In a vocabulary of web pages </s> may be a word; as an end of generation it must not be one."""
        merges = ["< /", "</ s", "</s >", "</s> x"]
        tokens = [*bpe_vocabulary()[KEY + "tokens"].value, "</", "</s", "</s>", "</s>x"]
        types = [CONTROL] * 3 + [NORMAL] * (len(tokens) - 3)
        tokenizer = load("bpe", **vocabulary(tokens, types), merges=strings(merges))
        end = tokens.index("</s>")
        assert end in tokenizer.eog
        assert end in tokenizer.encode("</s>x", parse_special=True)
        assert end not in tokenizer.encode("</s>x")
        assert tokenizer.decode(tokenizer.encode("</s>x")) == "</s>x"

    def test_user_defined_are_always_found(self, load: Loader) -> None:
        for kind, token in (("bpe", "he"), ("spm", "ing")):
            tokenizer = load(kind, token_type=types_with(kind, {token: USER_DEFINED}))
            ids = tokenizer.encode(f"x{token}{token}y", add_special=False)
            assert [tokenizer.decode([id]) for id in ids] == ["x", token, token, "y"]

    def test_the_longest_goes_first(self, load: Loader) -> None:
        """Anywhere in the text: not from left to right."""
        tokenizer = load("bpe", {"he": "ab", "in": "bcd", "er": "ba"},
                         token_type=types_with("bpe", {"he": 4, "in": 4, "er": 4}), merges=ONE_MERGE)  # fmt: skip
        tokens = [*TINY["bpe"][1]()[KEY + "tokens"].value]
        ab, bcd, ba = tokens.index("he"), tokens.index("in"), tokens.index("er")
        a = tokens.index("a")
        assert tokenizer.encode("abcd") == [a, bcd]
        assert tokenizer.encode("abab") == [ab, ab]
        assert tokenizer.encode("babcdab") == [ba, bcd, ab]

    def test_split(self, load: Loader) -> None:
        assert load("bpe").split("<|im_start|>user\n<|im_end|>") == [1, "user\n", 2]
        assert load("bpe").split("") == []


def vocabulary(tokens: list[str], types: list[int]) -> dict[str, Field]:
    return {"tokens": strings(tokens), "token_type": numbers(types, "INT32")}


# ------------------------------------------------------------------------------------ hostile metadata

U32, I32, F32 = "UINT32", "INT32", "FLOAT32"
N = {kind: n_tokens(vocabulary()) for kind, (_, vocabulary) in TINY.items()}
HUGE = 2**32 - 1

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    # kind, what is changed, the error behind "<path>: tokenizer.ggml."
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
    ("bpe", {"tokens": strings(["a", "b\0c", "d"]), "token_type": None}, "tokens: a string has a NUL inside"),
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
    ("bpe", {"merges": strings([" e"])}, "merges: Token ``"),
    ("bpe", {"merges": strings(["q q"])}, "merges: Token `qq` out of vocabulary"),
    ("bpe", {"merges": strings(["zz yy"])}, "merges: Token `zz` out of vocabulary"),
    ("bpe", {"merges": Field("ARRAY", [b"\xff e"], "STRING")}, "merges: not every string is UTF-8"),
    *((kind, {f"{name}_token_id": id}, f"{name}_token_id: there is no token {id}")
      for kind in TINY for name in ("bos", "eos", "eot", "eom", "unknown") for id in (N[kind], HUGE)),
    ("bpe", {"bos_token_id": Field(I32, -1)}, "bos_token_id: -1 is negative"),
    ("spm", {"eos_token_id": Field("STRING", "1")}, "eos_token_id: expected an integer"),
    ("bpe", {"bos_token_id": None, "add_bos_token": True}, "bos_token_id: missing, but add_bos_token is true"),
    ("bpe", {"eos_token_id": None, "add_eos_token": True}, "eos_token_id: missing, but add_eos_token is true"),
    ("bpe", {"add_bos_token": 1}, "add_bos_token: expected a bool"),
    ("spm", {"add_space_prefix": 1}, "add_space_prefix: expected a bool"),
]  # fmt: skip
UNSUPPORTED: list[tuple[str, dict[str, Any], str]] = [
    ("bpe", {"model": "bert"}, "model: 'bert' is not supported, only gpt2 and llama are"),
    ("bpe", {"model": "gpt2\0"}, r"model: 'gpt2\x00' is not supported"),
    ("bpe", {"pre": "gpt-9"}, "pre: 'gpt-9' is not a known pre-tokenizer"),
    ("bpe", {"pre": "\x1b[2J"}, r"pre: '\x1b[2J' is not a known"),
    ("bpe", {"pre": None}, "pre: is missing"),
]


class TestHostileMetadata:
    @pytest.mark.parametrize(("kind", "keys", "message"), REFUSED)
    def test_refused(self, load: Loader, tmp_path: Path, kind: str, keys: dict[str, Any], message: str) -> None:
        with pytest.raises(LocalInferError) as caught:
            load(kind, **keys)
        self.is_one_line(caught.value, tmp_path, message)
        assert caught.value.exit_code == 1

    @pytest.mark.parametrize(("kind", "keys", "message"), UNSUPPORTED)
    def test_unsupported(self, load: Loader, tmp_path: Path, kind: str, keys: dict[str, Any], message: str) -> None:
        with pytest.raises(Unsupported) as caught:
            load(kind, **keys)
        self.is_one_line(caught.value, tmp_path, message)

    @pytest.mark.parametrize("text", ["<0x-1>", "<0xZZ>", "<0x100>", "<0x>", "<0x1>", "<0xff>", "<>", "A"])
    def test_byte_tokens_that_are_none(self, load: Loader, tmp_path: Path, text: str) -> None:
        with pytest.raises(LocalInferError) as caught:
            load("spm", {"<0x41>": text})
        self.is_one_line(caught.value, tmp_path, f"tokens: token {6 + 0x41} is of type byte, but reads b'{text}'")

    def test_a_byte_token_is_missing(self, load: Loader, tmp_path: Path) -> None:
        with pytest.raises(LocalInferError) as caught:
            load("spm", token_type=types_with("spm", {"<0x41>": NORMAL}))
        self.is_one_line(caught.value, tmp_path, "tokens: the byte token <0x41> is missing (1 of 256 are)")

    @pytest.mark.parametrize("kind", TINY)
    def test_any_bytes(self, tmp_path: Path, kind: str) -> None:
        """Bytes of the vocabulary changed at random: one error, or a tokenizer that works."""
        generator = random.Random(7)
        path = TINY[kind][0](tmp_path / "model.gguf", n_layer=1)
        content, end = path.read_bytes(), open_gguf(path).data_offset
        for _ in range(200):
            changed = bytearray(content)
            for _ in range(generator.choice((1, 1, 3))):
                place = generator.randrange(content.index(KEY.encode()), end)
                changed[place] = generator.choice((0, 0x20, 0xFF, generator.randrange(256)))
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


class TestArraysOnTheEdge:
    """Files that the `gguf` package would not write."""

    def load(self, path: Path, tokens: bytes, n: int, merges: int = 0) -> Tokenizer:
        path.write_bytes(
            attacks.container(
                self.text("model", "gpt2"),
                self.text("pre", "gpt-2"),
                attacks.kv(KEY + "merges", attacks.ARRAY, attacks.array(attacks.STRING, merges)),
                attacks.kv(KEY + "tokens", attacks.ARRAY, attacks.array(attacks.STRING, n, tokens)),
            )
        )
        return from_gguf(open_gguf(path))

    def text(self, key: str, value: str) -> bytes:
        return attacks.kv(KEY + key, attacks.STRING, attacks.string(value))

    def test_no_tokens(self, tmp_path: Path) -> None:
        with pytest.raises(LocalInferError, match="tokens: 0 tokens"):
            self.load(tmp_path / "model", b"", 0)

    def test_the_last_byte_of_the_file(self, tmp_path: Path) -> None:
        tokens = attacks.string("a") + attacks.string("<")
        assert self.load(tmp_path / "model", tokens, 2).encode("a<b") == [0, 1]

    def test_nothing_but_empty_tokens(self, tmp_path: Path) -> None:
        with pytest.raises(LocalInferError, match="tokens: 5000 tokens are empty"):
            self.load(tmp_path / "model", attacks.string("") * 5000, 5000)

    def test_too_many_tokens(self, tmp_path: Path) -> None:
        with pytest.raises(LocalInferError, match="tokens: 2000000 tokens"):
            self.load(tmp_path / "model", attacks.string("") * 2_000_000, 2_000_000)


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
        keys = vocabulary(tokens, [UNKNOWN, NORMAL, NORMAL, NORMAL])
        tokenizer = load("spm", **keys, scores=numbers([0.0] * 4, F32), bos_token_id=None, eos_token_id=None,
                         unknown_token_id=None, add_bos_token=False)  # fmt: skip
        assert tokenizer.encode("a b日") == [2, 1, 3, 0]

    def test_many_identical_merges(self, load: Loader) -> None:
        begin = time.monotonic()
        tokenizer = load("bpe", merges=strings(["h e"] * 300_000))
        assert tokenizer.decode(tokenizer.encode("the")) == "the"
        assert time.monotonic() - begin < 20

    def test_a_character_that_spells_no_byte(self, load: Loader) -> None:
        tokenizer = load("bpe", {"he": "日本"}, merges=ONE_MERGE)
        assert "日本" in [tokenizer.decode([id]) for id in range(tokenizer.n_vocab)]


class TestEndsOfGeneration:
    def ends(self, load: Loader, *texts: str, **keys: Any) -> list[str]:
        words = ("he", "in", "er", "an", "re", "ou", "ll")
        tokenizer = load("bpe", dict(zip(words, texts, strict=False)), merges=ONE_MERGE, **keys)
        shown = {tokenizer.decode([id], special=True) for id in tokenizer.eog}
        return sorted(shown - {"<|endoftext|>", "<|im_end|>"})

    def test_by_text(self, load: Loader) -> None:
        assert self.ends(load, "<|eot_id|>", "<turn>", "</s>") == ["</s>", "<|eot_id|>"]

    def test_by_key(self, load: Loader) -> None:
        assert self.ends(load, eot_token_id=3, eom_token_id=4, fim_pad_token_id=5) == ["\0", "\1", "\2"]

    def test_fill_in_the_middle(self, load: Loader) -> None:
        texts = ("<|fim_prefix|>", "<|fim_pad|>", "<PAD>", "<|file_sep|>", "<reponame>")
        assert self.ends(load, *texts) == ["<reponame>", "<|file_sep|>", "<|fim_pad|>"]

    def test_a_message_of_several(self, load: Loader) -> None:
        assert self.ends(load, "<|end|>", "<|return|>", "<|call|>") == ["<|call|>", "<|return|>"]
        assert self.ends(load, "<|end|>", "<|return|>") == ["<|end|>", "<|return|>"]
        assert self.ends(load, "</s>", "<|tool_response>") == ["<|tool_response>"]


# ------------------------------------------------------------------------------------------------ time


class TestTime:
    """Bounds that a busy machine keeps and quadratic time does not: these texts would take minutes."""

    @pytest.mark.parametrize(
        "unit", ["A", " ", "\n", "1", "👨‍👩‍👧‍👦\u200d", "\u0301", "a\n", "<b>", "\n\nx", "'s", " \t", "<|im_"]
    )
    def test_runs(self, real: tuple[str, Tokenizer], unit: str) -> None:
        _, tokenizer = real
        text = unit * (100_000 // len(unit))
        begin = time.process_time()
        ids = tokenizer.encode(text, parse_special=True)
        assert time.process_time() - begin < 5
        assert tokenizer.decode(ids, special=True).removeprefix("<bos>") == text

    def test_building(self, smollm2: Path, gemma3: Path) -> None:
        """Twice the bound of a quiet machine."""
        for path, limit in ((smollm2, 0.2), (gemma3, 0.4)):
            f = open_gguf(path)
            begin = time.process_time()
            from_gguf(f)
            assert time.process_time() - begin < limit


class TestPreTokenizers:
    @pytest.mark.parametrize("name", NAMED)
    def test_every_name_works(self, load: Loader, name: str) -> None:
        tokenizer = load("bpe", pre=name)
        text = "Hello, it's  the 12345th\r\n\t  ＦＯＯ日本 don’t — (x)"
        assert tokenizer.decode(tokenizer.encode(text)) == text

    def test_words_and_digits(self, load: Loader) -> None:
        """One merge over a border shows where the borders are: GPT-2 keeps digits together, SmolLM does not."""
        cases = {"gpt-2": 1, "smollm": 2, "qwen2": 2, "llama-bpe": 1}
        for name, expected in cases.items():
            tokenizer = load("bpe", {"he": "12"}, pre=name, merges=strings(["1 2"]), add_bos_token=False)
            assert len(tokenizer.encode("12")) == expected, name

    def test_first_token_by_default(self, load: Loader) -> None:
        assert load("bpe", pre="llama-bpe", add_bos_token=None).encode("") == [1]
        assert load("bpe", pre="smollm", add_bos_token=None).encode("") == []

    def test_the_alphabet(self) -> None:
        assert sorted(BYTE_OF.values()) == [bytes([byte]) for byte in range(256)]
        assert BYTE_OF["Ġ"] == b" "
        assert BYTE_OF["Ċ"] == b"\n"
        assert BYTE_OF["é"] == b"\xe9"


# --------------------------------------------------------------------------------------------- command


class TestCommand:
    def test_lines(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tiny_llama(tmp_path / "model.gguf")
        out = self.run(capsys, str(path), "-p", "the\n\x1b é<|im_end|>")
        assert [line.split(" -> ")[1] for line in out.splitlines()] == [
            "'t'", "'he'", r"'\n'", r"'\x1b'", "' '", r"'\xc3'", r"'\xa9'", "'<|im_end|>'",
        ]  # fmt: skip
        assert out.splitlines()[-1] == "     2 -> '<|im_end|>'"

    def test_ids(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = str(tiny_gemma3(tmp_path / "model.gguf"))
        tokenizer = from_gguf(open_gguf(Path(path)))
        text = "the <eos>"
        for flags, options in (
            ((), {"parse_special": True}),
            (("--no-bos",), {"parse_special": True, "add_special": False}),
            (("--no-special",), {}),
        ):
            out = self.run(capsys, path, "-p", text, "--ids", *flags)
            assert json.loads(out) == tokenizer.encode(text, **options)

    def test_a_vocabulary_that_cannot_work(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tiny_llama(tmp_path / "model.gguf", **{KEY + "pre": "?"})
        assert main.run(["tokenize", str(path), "-p", "a"]) == 3
        out, err = capsys.readouterr()
        assert out == ""
        assert err == f"error: {path}: tokenizer.ggml.pre: '?' is not a known pre-tokenizer\n"

    def run(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
        assert main.run(["tokenize", *arguments]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        return out

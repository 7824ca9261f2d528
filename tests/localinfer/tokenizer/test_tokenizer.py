"""The tokenizers of real models: llama.cpp's ids, round trips, streaming, special tokens, linear time."""

import hashlib
import json
import random
import re
import time
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import recorded
from tiny import bpe_vocabulary, tiny_gemma3, tiny_llama
from tiny_tokenizers import (
    CONTROL,
    KEY,
    NORMAL,
    ONE_MERGE,
    TINY,
    USER_DEFINED,
    Loader,
    of_types,
    strings,
    tiny_tokenizer,
    types_with,
)
from tokenizer_texts import random_texts, tricky

from cli import __main__ as main
from localinfer.errors import UsageError
from localinfer.gguf.reader import open_gguf
from localinfer.tokenizer import Tokenizer, from_gguf

MODELS = ("smollm2", "gemma3")


@pytest.fixture(scope="session", params=MODELS)
def real(request: pytest.FixtureRequest) -> tuple[str, Tokenizer]:
    path: Path = request.getfixturevalue(request.param)
    return request.param, from_gguf(open_gguf(path))


@pytest.fixture
def load(tmp_path: Path) -> Loader:
    """Return a function that loads a tiny model's tokenizer: see `tiny_tokenizer`."""
    return partial(tiny_tokenizer, tmp_path / "model.gguf")


# ------------------------------------------------------------------------------------- llama.cpp's ids


def fixture(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = recorded.read(f"tokenizer_{name}")
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

    def test_texts_equal_the_recorded_texts(self) -> None:
        for name in MODELS:
            assert [case["text"] for case in fixture(name)["texts"]] == tricky()


# ----------------------------------------------------------------------------------------- properties


LOST = {  # characters that the vocabularies cannot encode, here and in llama.cpp
    "smollm2": re.compile("[\x00-\x08\x0e-\x1f\U00040000-\U000bffff]"),  # some of their bytes have no token
    "gemma3": re.compile("▁"),  # stands for a space
}


def texts(name: str, seed: int, n: int) -> list[str]:
    """Return random texts that survive a round trip."""
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

    def test_added_space_is_removed(self, load: Loader) -> None:
        tokenizer = load("spm", add_space_prefix=True)
        for text in ("the", " the", ""):
            assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.encode("the") == [2, *tokenizer.encode("▁the", add_special=False)[1:]]

    def test_space_after_another_control_token_is_kept(self, load: Loader) -> None:
        """As in llama.cpp, only the space that `encode` adds to the first token is removed. BOS is added too."""
        tokenizer = load("spm", add_space_prefix=True)
        ids = tokenizer.encode("<eos>the", add_special=False, parse_special=True)
        assert tokenizer.decode(ids) == " the"
        assert tokenizer.decode(ids, special=True) == "<eos> the"
        assert tokenizer.decode([tokenizer.bos, *ids[1:]]) == "the"
        assert tokenizer.decode([tokenizer.bos, *ids[1:]], special=True) == "<bos> the"
        assert tokenizer.decode([]) == ""

    @pytest.mark.parametrize("kind", TINY)
    def test_lone_surrogates(self, load: Loader, kind: str) -> None:
        tokenizer = load(kind)
        assert tokenizer.decode(tokenizer.encode("a\ud83d\ude00b\ud83dc\udc80")) == "a😀b\ufffdc\ufffd"

    def test_decoding_can_be_stopped(self, load: Loader) -> None:
        calls = []

        def stop_at_the_second_call() -> None:
            calls.append(None)
            if len(calls) == 2:
                raise InterruptedError

        with pytest.raises(InterruptedError):
            load("bpe").decode([5] * 1_000_000, on_wait=stop_at_the_second_call)

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
            chunks = [stream.push(id) for id in tokenizer.encode(text)]
            assert "".join(chunks) == text  # U+FFFD only if the text has it
            assert stream.flush() == ""

    def test_random_tokens(self, real: tuple[str, Tokenizer]) -> None:
        """Pieces of random tokens add up to the decoded text, with one U+FFFD per broken character."""
        _, tokenizer = real
        generator = random.Random(3)
        for _ in range(200):
            ids = [generator.randrange(tokenizer.n_vocab) for _ in range(30)]
            stream = tokenizer.stream(special=True)
            chunks = [stream.push(id) for id in ids] + [stream.flush()]
            assert "".join(chunks) == tokenizer.decode(ids, special=True)

    @pytest.mark.parametrize("kind", TINY)
    def test_incomplete_characters_are_buffered(self, load: Loader, kind: str) -> None:
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
    def test_only_if_requested(self, load: Loader, kind: str, text: str) -> None:
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
            token_text = tokenizer.token_bytes(id, special=True).decode()
            assert not hidden & set(tokenizer.encode(f"a{token_text} {token_text}", add_special=False))

    def test_merges_do_not_make_control_tokens(self, load: Loader) -> None:
        """</s> may be a normal token, but not if it ends generation."""
        merges = ["< /", "</ s", "</s >", "</s> x"]
        tokens = [*bpe_vocabulary()[KEY + "tokens"].value, "</", "</s", "</s>", "</s>x"]
        types = [CONTROL] * 3 + [NORMAL] * (len(tokens) - 3)
        tokenizer = load("bpe", **of_types(tokens, types), merges=strings(merges))
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

    def test_longest_token_matches_first(self, load: Loader) -> None:
        """The longest token is matched anywhere in the text, not from left to right."""
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


# ------------------------------------------------------------------------------------------------ time


class TestTime:
    """The limits hold on a busy machine; with quadratic time these texts would take minutes."""

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
        """The limit is twice that of an idle machine."""
        for path, limit in ((smollm2, 0.2), (gemma3, 0.4)):
            f = open_gguf(path)
            begin = time.process_time()
            from_gguf(f)
            assert time.process_time() - begin < limit


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

    def test_unusable_vocabulary(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tiny_llama(tmp_path / "model.gguf", **{KEY + "pre": "?"})
        assert main.run(["tokenize", str(path), "-p", "a"]) == 3
        out, err = capsys.readouterr()
        assert out == ""
        assert err == f"error: {path}: tokenizer.ggml.pre: '?' is not supported\n"

    def run(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
        assert main.run(["tokenize", *arguments]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        return out

"""RWKV's tokenizer: escaped bytes and the greedy longest match."""

from pathlib import Path

from synthetic_vocabularies import keys_of, rwkv, write

from localinfer.gguf.reader import open_gguf
from localinfer.tokenizer import Tokenizer, from_gguf


def load(path: Path, keys: dict[str, object]) -> Tokenizer:
    return from_gguf(open_gguf(write(path / "model.gguf", keys)))


def test_longest_match(tmp_path: Path) -> None:
    tokens = [r"a", r"ab", r"abcd", r"\xe6\x97", r"\x97", r"\\", r"\n", r"\'", r"\xa5", "c", "d", "b"]
    tokenizer = load(tmp_path, keys_of("rwkv", ["<s>"], tokens))
    ids = tokenizer.encode("abcabcd日\\\n'")
    assert [tokenizer.token_bytes(id) for id in ids] == [
        b"ab", b"c", b"abcd", b"\xe6\x97", b"\xa5", b"\\", b"\n", b"'",
    ]  # fmt: skip


def test_unknown_bytes(tmp_path: Path) -> None:
    assert load(tmp_path, keys_of("rwkv", ["<s>"], ["a"])).encode("axa") == [1, 1]
    assert load(tmp_path, keys_of("rwkv", ["<s>"], ["a"], unknown_token_id=0)).encode("axa") == [1, 0, 1]


def test_round_trip(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, rwkv())
    assert tokenizer.decode(tokenizer.encode("Hello, 日本\0\x7f <s>")) == "Hello, 日本\0\x7f <s>"

"""Checks of all strings of an array: whether they are UTF-8, and distinct."""

import random
from pathlib import Path

import numpy as np
import pytest
from tiny import tiny_llama

from localinfer.errors import LocalInferError
from localinfer.gguf.cursor import StringArray
from localinfer.gguf.reader import GGUF, open_gguf
from localinfer.tokenizer.string_arrays import copy_texts, decode_strings, has_duplicates

LONG = 300  # bytes: a length that takes two bytes


def array(texts: list[bytes]) -> StringArray:
    stored = b"".join(len(text).to_bytes(8, "little") + text for text in texts)
    return StringArray(np.frombuffer(stored, np.uint8), np.cumsum([8] + [len(text) + 8 for text in texts]))


@pytest.fixture
def f(tmp_path: Path) -> GGUF:
    return open_gguf(tiny_llama(tmp_path / "model.gguf"))


@pytest.mark.parametrize("length", [1, 7, 8, 9, 15, 16, 17, 100, LONG])
def test_duplicates(length: int) -> None:
    """Texts of this length differ in one byte, and from texts of another length."""
    texts = [bytes([letter]) * length for letter in b"abc"] + [b"", b"a" * (length + 1)]
    for at in range(length):
        changed = bytearray(b"a" * length)
        changed[at] = 0
        texts.append(bytes(changed))
    random.Random(length).shuffle(texts)
    assert not has_duplicates(array(texts))
    for text in (texts[0], texts[-1], b""):
        assert has_duplicates(array([*texts, text]))


def test_no_strings(f: GGUF) -> None:
    assert not has_duplicates(array([]))
    assert list(copy_texts(f, "key", array([]))) == []
    assert decode_strings(f, "key", array([])) == []


@pytest.mark.parametrize("text", ["", "a", "\0", "é" * 100, "é" * LONG, "字😀", "\x7f" * 128])
def test_utf8(f: GGUF, text: str) -> None:
    texts = ["before", text, "", text, "after"]
    stored = array([each.encode() for each in texts])
    assert list(copy_texts(f, "key", stored)) == [each.encode() for each in texts]
    assert decode_strings(f, "key", stored) == texts


@pytest.mark.parametrize("text", [b"\xff", b"\xc3", b"a" * LONG + b"\x80", b"\xed\xa0\x80"])
def test_not_utf8(f: GGUF, text: bytes) -> None:
    """The two bytes of a character in two strings are not one."""
    stored = array([b"before", text, b"\xa9", b"after"])
    for check in (copy_texts, decode_strings):
        with pytest.raises(LocalInferError, match="key: not every string is UTF-8"):
            check(f, "key", stored)

"""Finding strings of an array."""

import numpy as np
import pytest

from localinfer.gguf.cursor import StringArray
from localinfer.tokenizer.string_arrays import StringIndex

TEXTS = [b"same text", b"", b"a", b"same text 2", b"a\0", b"12345678", b"same text", b"123456789"]


def array(texts: list[bytes]) -> StringArray:
    stored = b"".join(len(text).to_bytes(8, "little") + text for text in texts)
    return StringArray(np.frombuffer(stored, np.uint8), np.cumsum([8] + [len(text) + 8 for text in texts]))


@pytest.mark.parametrize("text", TEXTS[1:])
def test_finds_the_last_equal_string(text: bytes) -> None:
    assert StringIndex(array(TEXTS)).find_last(text, -1) == len(TEXTS) - 1 - TEXTS[::-1].index(text)


@pytest.mark.parametrize("text", [b"b", b"same tex", b"same text 3", b"1234567", b"\0"])
def test_returns_the_default_if_there_is_none(text: bytes) -> None:
    assert StringIndex(array(TEXTS)).find_last(text, -1) == -1


def test_no_strings() -> None:
    assert StringIndex(array([])).find_last(b"", 5) == 5

"""Numbers in groups of three from the right, beside the regular expressions that say the same in quadratic time."""

import random
import re
import time

import pytest

from localinfer.tokenizer.thousands import numbers_apart, numbers_with_text_before


@pytest.mark.parametrize(
    ("text", "with_text", "apart"),
    [
        ("is 1234567.", ["is 1", "234", "567", "."], ["is ", "1", "234", "567", "."]),
        ("123456", ["123", "456"], ["123", "456"]),
        ("a12b", ["a12", "b"], ["a", "12", "b"]),
        ("no number", ["no number"], ["no number"]),
        ("٣٤٥٦", ["٣", "٤٥٦"], ["٣٤٥٦"]),  # not in ASCII
        ("½1234²", ["½12", "34²"], ["½1", "234²"]),  # numbers, but no digits
    ],
)
def test_examples(text: str, with_text: list[str], apart: list[str]) -> None:
    assert numbers_with_text_before(text) == with_text
    assert numbers_apart(text) == apart


def test_as_expressions_say() -> None:
    generator = random.Random(1)
    for _ in range(2000):
        text = "".join(generator.choice("0123ab ²") for _ in range(generator.randint(1, 20)))
        groups = re.findall(r"[^0-9²]*[0-9²]{1,3}(?=(?:[0-9²]{3})*(?![0-9²]))|[^0-9²]+$", text)
        assert numbers_with_text_before(text) == groups
        cuts = re.split(r"(?=(?:[0-9]{3})+(?![0-9]))(?=[0-9])|(?<=[0-9²])(?=[ab ])|(?<=[ab ])(?=[0-9²])", text)
        assert numbers_apart(text) == [part for part in cuts if part]


def test_linear_time() -> None:
    begin = time.process_time()
    assert len(numbers_with_text_before("1" * 1_000_000)) == 333_334
    assert len(numbers_apart("1" * 1_000_000)) == 333_334
    assert time.process_time() - begin < 10

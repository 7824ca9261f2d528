"""Digit grouping equals the equivalent regular expressions, which need quadratic time."""

import random
import re
import time

import pytest

from localinfer.tokenizer.digit_grouping import group_ascii_digits, group_digits_with_prefix


@pytest.mark.parametrize(
    ("text", "with_text", "separately"),
    [
        ("is 1234567.", ["is 1", "234", "567", "."], ["is ", "1", "234", "567", "."]),
        ("123456", ["123", "456"], ["123", "456"]),
        ("a12b", ["a12", "b"], ["a", "12", "b"]),
        ("no number", ["no number"], ["no number"]),
        ("٣٤٥٦", ["٣", "٤٥٦"], ["٣٤٥٦"]),  # digits outside of ASCII
        ("½1234²", ["½12", "34²"], ["½1", "234²"]),  # numbers that are not digits
    ],
)
def test_examples(text: str, with_text: list[str], separately: list[str]) -> None:
    assert group_digits_with_prefix(text) == with_text
    assert group_ascii_digits(text) == separately


def test_equals_regular_expressions() -> None:
    generator = random.Random(1)
    for _ in range(2000):
        text = "".join(generator.choice("0123ab ²") for _ in range(generator.randint(1, 20)))
        groups = re.findall(r"[^0-9²]*[0-9²]{1,3}(?=(?:[0-9²]{3})*(?![0-9²]))|[^0-9²]+$", text)
        assert group_digits_with_prefix(text) == groups
        pieces = re.split(r"(?=(?:[0-9]{3})+(?![0-9]))(?=[0-9])|(?<=[0-9²])(?=[ab ])|(?<=[ab ])(?=[0-9²])", text)
        assert group_ascii_digits(text) == [chunk for chunk in pieces if chunk]


def test_linear_time() -> None:
    begin = time.process_time()
    assert len(group_digits_with_prefix("1" * 1_000_000)) == 333_334
    assert len(group_ascii_digits("1" * 1_000_000)) == 333_334
    assert time.process_time() - begin < 10

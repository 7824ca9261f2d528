"""Tokens become words with times, and words become segments."""

from itertools import pairwise

import pytest

from localinfer.speech_recognition.decoding import RecognizedToken
from localinfer.speech_recognition.words import Word, WordBuilder, join
from localinfer.transcription.recognizer import segments

Timed = tuple[str, int, int]


def words(*tokens: Timed, has_durations: bool = True, total: float = 100.0) -> list[Word]:
    """Return the words of tokens: texts with the rows from which and to which they last, two rows per second."""
    builder = WordBuilder(tuple(piece for piece, *_ in tokens), 0.5, total, has_durations=has_durations)
    found = [RecognizedToken(number, start, end) for number, (_, start, end) in enumerate(tokens)]
    return [*builder.feed(found), *builder.finish()]


def test_a_word_begins_with_a_space() -> None:
    found = words(("▁Hel", 2, 4), ("lo", 4, 5), ("▁", 8, 9), ("you", 9, 10))
    assert found == [Word(1.0, 2.5, "Hello"), Word(4.5, 5.0, "you")]


def test_punctuation_ends_with_the_token_before_it_only_if_tokens_have_durations() -> None:
    tokens = ("▁so", 2, 4), (".", 9, 12)
    assert words(*tokens) == [Word(1.0, 2.0, "so.")]
    assert words(*tokens, has_durations=False) == [Word(1.0, 6.0, "so.")]


def test_special_tokens_are_no_text_and_bytes_are_characters() -> None:
    found = words(("<unk>", 0, 1), ("▁caf", 1, 2), ("<0xC3>", 2, 3), ("<0xA9>", 3, 4), ("<|endoftext|>", 8, 9))
    assert found == [Word(0.5, 2.0, "café")]


def test_bytes_that_are_no_character_are_replaced() -> None:
    assert words(("▁a", 0, 1), ("<0xC3>", 1, 2)) == [Word(0.0, 1.0, "a�")]


def test_sentences_without_spaces_are_words_that_are_joined() -> None:
    found = words(("▁今日", 0, 1), ("。", 1, 2), ("は", 2, 3))
    assert [(word.text, word.is_joined) for word in found] == [("今日。", False), ("は", True)]
    assert join(found) == "今日。は"


def test_no_word_ends_after_the_sound() -> None:
    assert words(("▁a", 4, 8), total=3.3) == [Word(2.0, 3.3, "a")]


def spoken(*texts: str, seconds: float = 0.4, pause: float = 0.1) -> list[Word]:
    """Return words that follow each other."""
    starts = [number * (seconds + pause) for number in range(len(texts))]
    return [Word(start, start + seconds, text) for start, text in zip(starts, texts, strict=True)]


def test_segments_are_sentences() -> None:
    found = list(segments(spoken("It", "is", "3.5", "m.", "Why?")))
    assert [segment.text for segment in found] == ["It is 3.5 m.", "Why?"]
    assert (found[0].start, found[0].end) == (0.0, pytest.approx(1.9))
    assert found[1].words == (Word(2.0, 2.4, "Why?"),)


def test_a_pause_ends_a_segment() -> None:
    first = spoken("a", "b")
    later = [word._replace(start=word.start + 2, end=word.end + 2) for word in spoken("c")]
    assert [segment.text for segment in segments([*first, *later])] == ["a b", "c"]


def test_segments_are_not_longer_than_twenty_seconds() -> None:
    found = list(segments(spoken(*"abcdefghij" * 8, seconds=0.9)))
    assert all(segment.end - segment.start <= 20 for segment in found)
    assert all(before.end < after.start for before, after in pairwise(found))
    assert sum(len(segment.words) for segment in found) == 80
    assert len(found) == 4

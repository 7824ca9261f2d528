"""Sounds are cut at quiet places."""

import numpy as np
import pytest
from hearing_model import RATE, speech

from localinfer.transcription.chunks import Chunk, cut, is_silent


def test_a_short_sound_is_one_chunk() -> None:
    assert cut(speech(30), 30) == [Chunk(0, 30 * RATE)]
    assert cut(speech(0), 30) == [Chunk(0, 0)]


def test_chunks_end_in_pauses() -> None:
    chunks = cut(speech(70, pauses=(10, 25, 48)), 30)
    assert [chunk.end / RATE for chunk in chunks[:-1]] == pytest.approx([25, 48], abs=0.2)
    assert chunks[-1].end == 70 * RATE


@pytest.mark.parametrize("seconds", [31.0, 60.01, 200.0])
def test_chunks_without_pauses_are_consecutive_and_not_too_long(seconds: float) -> None:
    samples = speech(seconds)
    chunks = cut(samples, 5.5)
    assert [chunk.start for chunk in chunks] == [0, *(chunk.end for chunk in chunks[:-1])]
    assert chunks[-1].end == len(samples)
    assert all(0 < chunk.end - chunk.start <= 5.5 * RATE for chunk in chunks)


def test_the_last_of_equally_quiet_places_ends_a_chunk() -> None:
    chunks = cut(np.zeros(40 * RATE, np.float32), 30)
    assert chunks[0].end / RATE == pytest.approx(29.9, abs=0.05)


def test_silence_is_told_from_speech() -> None:
    assert is_silent(np.zeros(RATE, np.float32))
    assert is_silent(np.zeros(0, np.float32))
    assert not is_silent(speech(1))

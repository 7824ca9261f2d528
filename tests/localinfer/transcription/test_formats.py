"""Transcripts are written as whisper.cpp writes them."""

import json

from localinfer.transcription.formats import as_json, as_srt, as_text, as_vtt, time_stamp
from localinfer.transcription.transcriber import Segment

SEGMENTS = [Segment(0.0, 28.66, "Guten Tag.\n\nTom & Ann", "de"), Segment(3600.5, 3661.0015, "a <b>", "de")]


def test_text_has_a_line_for_each_segment() -> None:
    assert as_text(SEGMENTS) == "Guten Tag. Tom & Ann\na <b>\n"


def test_srt() -> None:
    assert as_srt(SEGMENTS) == (
        "1\n00:00:00,000 --> 00:00:28,660\nGuten Tag. Tom & Ann\n\n2\n01:00:00,500 --> 01:01:01,002\na <b>\n\n"
    )


def test_webvtt_escapes_what_it_gives_a_meaning() -> None:
    assert as_vtt(SEGMENTS) == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:28.660\nGuten Tag. Tom &amp; Ann\n\n"
        "01:00:00.500 --> 01:01:01.002\na &lt;b&gt;\n\n"
    )


def test_json_has_the_field_names_of_whisper_cpp() -> None:
    found = json.loads(as_json(SEGMENTS, "voxtral", ""))
    assert found["params"] == {"model": "voxtral", "language": "auto", "translate": False}
    assert found["result"] == {"language": "de"}
    assert found["transcription"][1] == {
        "timestamps": {"from": "01:00:00,500", "to": "01:01:01,002"},
        "offsets": {"from": 3600500, "to": 3661002},
        "text": "a <b>",
    }


def test_no_speech_gives_valid_files() -> None:
    assert (as_text([]), as_srt([]), as_vtt([])) == ("", "", "WEBVTT\n\n")
    assert json.loads(as_json([], "m", "fr"))["result"] == {"language": "fr"}


def test_time_stamps_carry_over() -> None:
    assert time_stamp(59.9996, ",") == "00:01:00,000"

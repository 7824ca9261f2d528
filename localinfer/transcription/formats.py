"""Transcripts as text, SRT, WebVTT and JSON, as whisper.cpp writes them."""

import json
from collections.abc import Mapping, Sequence

from localinfer.speech_recognition.words import Word
from localinfer.transcription.transcriber import Segment

SECONDS_PER_HOUR, SECONDS_PER_MINUTE = 3600, 60


def time_stamp(seconds: float, decimal_sign: str) -> str:
    """Return a time as hours:minutes:seconds with three decimals."""
    milliseconds = round(1000 * seconds)
    whole, rest = divmod(milliseconds, 1000)
    hours, minutes = divmod(whole // SECONDS_PER_MINUTE, SECONDS_PER_HOUR // SECONDS_PER_MINUTE)
    return f"{hours:02}:{minutes:02}:{whole % SECONDS_PER_MINUTE:02}{decimal_sign}{rest:03}"


def as_text(segments: Sequence[Segment]) -> str:
    """Return a line for each segment."""
    return "".join(f"{one_paragraph(segment.text)}\n" for segment in segments)


def as_srt(segments: Sequence[Segment]) -> str:
    """Return SubRip subtitles."""
    return "".join(f"{number}\n{cue(segment, ',')}\n" for number, segment in enumerate(segments, 1))


def as_vtt(segments: Sequence[Segment]) -> str:
    """Return WebVTT subtitles."""
    escapes = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
    escaped = (Segment(each.start, each.end, each.text.translate(escapes)) for each in segments)
    return "WEBVTT\n\n" + "".join(f"{cue(segment, '.')}\n" for segment in escaped)


def as_json(segments: Sequence[Segment], model: str, language: str) -> str:
    """Return an object with the field names of whisper.cpp. `words` are added if the model gives their times."""
    found = language or next((segment.language for segment in segments if segment.language), "")
    content: Mapping[str, object] = {
        "params": {"model": model, "language": language or "auto", "translate": False},
        "result": {"language": found},
        "transcription": [
            times_and_text(segment) | ({"words": list(map(times_and_text, segment.words))} if segment.words else {})
            for segment in segments
        ],
    }
    return json.dumps(content, ensure_ascii=False, indent=2) + "\n"


def times_and_text(part: Segment | Word) -> dict[str, object]:
    """Return the fields of a segment or a word."""
    return {
        "timestamps": {"from": time_stamp(part.start, ","), "to": time_stamp(part.end, ",")},
        "offsets": {"from": round(1000 * part.start), "to": round(1000 * part.end)},
        "text": part.text,
    }


def cue(segment: Segment, decimal_sign: str) -> str:
    """Return the times of a segment and its text. An empty line would end it."""
    times = " --> ".join(time_stamp(each, decimal_sign) for each in (segment.start, segment.end))
    return f"{times}\n{one_paragraph(segment.text)}\n"


def one_paragraph(text: str) -> str:
    """Return a text on one line."""
    return " ".join(text.split())

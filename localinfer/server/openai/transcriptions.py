"""`/v1/audio/transcriptions`: speech to text with a model that reads sounds."""

import asyncio
import math
import warnings
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from localinfer.errors import LocalInferError, NotEnoughMemoryError, UsageError
from localinfer.server.dispatcher import Dispatcher
from localinfer.server.http.api_errors import APIError, field_error
from localinfer.server.http.json_output import Event
from localinfer.server.lease import Lease
from localinfer.server.requests.forms import Form, get_text, get_texts
from localinfer.server.requests.request_fields import sampling_options
from localinfer.server.slots import SlotStopped
from localinfer.transcription.formats import as_srt, as_vtt, one_paragraph, time_stamp
from localinfer.transcription.languages import LANGUAGES, language_code

if TYPE_CHECKING:
    from localinfer.multimodal.media import Sound
    from localinfer.transcription.transcriber import Segment

FORMATS = ("json", "text", "srt", "verbose_json", "vtt")
STREAMED_FORMATS = ("json", "text")
GRANULARITIES = "timestamp_granularities[]"


@dataclass(frozen=True, slots=True)
class TranscriptionRequest:
    """A valid request. `language` is a code, or "" if the model recognizes it."""

    file: bytes
    model: str
    language: str
    format: str
    options: dict[str, Any]
    granularities: Sequence[str]
    stream: bool


@dataclass(frozen=True, slots=True)
class Transcription:
    """The segments of a sound that lasts so many seconds."""

    segments: "Sequence[Segment]"
    seconds: float
    request: TranscriptionRequest

    @property
    def text(self) -> str:
        return " ".join(one_paragraph(segment.text) for segment in self.segments)

    @property
    def usage(self) -> Event:
        return {"type": "duration", "seconds": math.ceil(self.seconds)}


def parse_transcription_request(form: Form) -> TranscriptionRequest:
    """Return the request in a form. Raises APIError (400) for an invalid field."""
    files = form.files.get("file", ())
    if len(files) != 1 or not files[0]:
        raise field_error("file", "must be a sound")
    format = get_text(form, "response_format", "json")
    if format not in FORMATS:
        raise field_error("response_format", f"must be one of {', '.join(FORMATS)}")
    stream = get_text(form, "stream", "false").lower()
    if stream not in ("true", "false"):
        raise field_error("stream", "must be true or false")
    if stream == "true" and format not in STREAMED_FORMATS:
        raise field_error("stream", f"is for the response_format {' or '.join(STREAMED_FORMATS)}")
    return TranscriptionRequest(
        files[0], get_text(form, "model"), parse_language(get_text(form, "language")), format,
        parse_temperature(get_text(form, "temperature") or "0"), parse_granularities(form, format), stream == "true",
    )  # fmt: skip


def parse_language(text: str) -> str:
    """Return the code of a language. Raises APIError (400) for an unknown one."""
    try:
        return language_code(text)
    except UsageError as error:
        raise field_error("language", str(error).partition(": ")[2]) from None


def parse_temperature(text: str) -> dict[str, Any]:
    """Return the options with this temperature. Raises APIError (400) for an invalid one."""
    try:
        value = float(text)
    except ValueError:
        raise field_error("temperature", "must be a number") from None
    return sampling_options({"temperature": value})


def parse_granularities(form: Form, format: str) -> list[str]:
    """Return whether `verbose_json` has segments, words or both. Raises APIError (400) for other formats and values."""
    values = get_texts(form, GRANULARITIES)
    if values and format != "verbose_json":
        raise field_error(GRANULARITIES, "is for the response_format verbose_json")
    if not set(values) <= {"segment", "word"}:
        raise field_error(GRANULARITIES, "must be segment or word")
    return [*values] or ["segment"]


async def transcription(request: TranscriptionRequest, dispatcher: Dispatcher) -> Transcription:
    """Transcribe a sound."""
    async with dispatcher.lease(request.model or None) as lease:
        sound = await read(request, lease)
        segments = [segment async for segment in transcribed(request, sound, lease)]
    return Transcription(segments, seconds_of(sound), request)


async def events(request: TranscriptionRequest, dispatcher: Dispatcher) -> AsyncGenerator[Event, None]:
    """Yield the events of a stream: the text of each segment, and at last the whole text."""
    segments: list[Segment] = []
    async with dispatcher.lease(request.model or None) as lease:
        sound = await read(request, lease)
        async with aclosing(transcribed(request, sound, lease)) as stream:
            async for segment in stream:
                delta = " " * bool(segments) + one_paragraph(segment.text)
                segments.append(segment)
                yield {"type": "transcript.text.delta", "delta": delta}
    whole = Transcription(segments, seconds_of(sound), request)
    yield {"type": "transcript.text.done", "text": whole.text, "usage": whole.usage}


async def read(request: TranscriptionRequest, lease: Lease) -> "Sound":
    """Return the sound of a request. Raises APIError (400) if it cannot be read, and an error if the model reads no
    sounds or, where they are wanted, gives no times of words.
    """
    from localinfer.multimodal.reading import read_sound

    def work() -> "Sound":
        _ = lease.model.projector.sound_type  # raises an error if the model reads no sounds
        if "word" in request.granularities:
            raise field_error(GRANULARITIES, "language models give no times of words, only of segments")
        try:
            return read_sound(request.file, "file")
        except NotEnoughMemoryError:
            raise
        except LocalInferError as error:
            raise APIError(400, str(error), "file") from None

    return await lease.call(work)


async def transcribed(request: TranscriptionRequest, sound: "Sound", lease: Lease) -> "AsyncGenerator[Segment, None]":
    """Yield the segments of a sound, computed in the slot's thread. Raises APIError (503) at the deadline."""
    from localinfer.transcription.transcriber import transcribe

    is_complete = False

    def check() -> None:
        if lease.slot.is_stopped:
            raise SlotStopped

    def work() -> "Iterator[Segment]":
        nonlocal is_complete
        limit = max(0, lease.model.options.n_predict)
        yield from transcribe(
            lease.model, sound, language=request.language, max_tokens=limit, options=request.options,
            check=check,
        )  # fmt: skip
        is_complete = True

    timer = asyncio.get_running_loop().call_at(lease.deadline, lease.slot.stop)
    try:
        async with aclosing(lease.slot.iterate(work())) as stream:
            async for segment in stream:
                if not segment.is_complete:
                    at = time_stamp(segment.start, ".")
                    warnings.warn(f"{lease.name}: the transcript from {at} on may be cut", stacklevel=2)
                yield segment
    finally:
        timer.cancel()
    if not is_complete:
        raise APIError(503, "the request took too long", code="timeout")


def seconds_of(sound: "Sound") -> float:
    """Return the duration of a sound."""
    from localinfer.multimodal.media import SAMPLE_RATE

    return len(sound.samples) / SAMPLE_RATE


def as_json(found: Transcription) -> Event:
    return {"text": found.text, "usage": found.usage}


def as_verbose_json(found: Transcription) -> Event:
    """Return the text with the times of its segments."""
    code = found.request.language or next((each.language for each in found.segments if each.language), "")
    return {
        "task": "transcribe",
        "language": LANGUAGES[code].lower() if code else "",
        "duration": found.seconds,
        "text": found.text,
        "segments": [
            {"id": number, "start": segment.start, "end": segment.end, "text": segment.text}
            for number, segment in enumerate(found.segments)
        ],
        "usage": found.usage,
    }


OBJECTS: dict[str, Callable[[Transcription], Event]] = {"json": as_json, "verbose_json": as_verbose_json}
TEXTS: dict[str, Callable[[Transcription], str]] = {
    "text": lambda found: f"{found.text}\n",
    "srt": lambda found: as_srt(found.segments),
    "vtt": lambda found: as_vtt(found.segments),
}

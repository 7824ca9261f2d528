"""The command `localinfer transcribe`: speech to text with a language model that reads sounds, or with a speech
recognition model."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments.flags import ModelArgument, with_options
from cli.files.output_files import writable_path, write_atomically
from cli.models.loading import find_or_fetch, find_or_fetch_with_projector, open_model, require_known_model
from cli.terminal import screen
from localinfer.errors import LocalInferError, UsageError
from localinfer.escaping import printable
from localinfer.options import FLAGS, Layer, combine, from_environment, merge

if TYPE_CHECKING:
    from localinfer.multimodal.media import Sound
    from localinfer.transcription.transcriber import Progress, Segment

    Transcribe = Callable[[Sound, Progress], Iterator[Segment]]

DEFAULTS: Layer = {"temp": 0.0}
SAMPLING = ("temp", "top_k", "top_p", "min_p", "repeat_penalty", "seed", "n_predict")
OF_RECOGNIZERS = ("threads", "threads_batch", "mmap", "precision")  # options of speech recognition models
NOT_OF_SOUNDS = ("image_min_tokens", "image_max_tokens", "video_fps", "video_max_frames")
KINDS = ("txt", "srt", "vtt", "json")
SHORTEST_CHUNK, LONGEST_CHUNK = 5.0, 30.0  # seconds


@dataclass(frozen=True, kw_only=True)
class TranscriptFiles:
    """The files that are written beside each sound, with the options of whisper.cpp."""

    txt: Annotated[bool, typer.Option("-otxt", "--output-txt", help="Write FILE.txt: the text.")] = False
    srt: Annotated[bool, typer.Option("-osrt", "--output-srt", help="Write FILE.srt: subtitles.")] = False
    vtt: Annotated[bool, typer.Option("-ovtt", "--output-vtt", help="Write FILE.vtt: subtitles for web pages.")] = False
    json: Annotated[bool, typer.Option("-oj", "--output-json", help="Write FILE.json: texts with times.")] = False

    name: Annotated[
        list[str] | None,
        typer.Option(
            "-of", "--output-file", metavar="NAME",
            help="Write NAME.txt and so on instead of FILE.txt; may be repeated, for one sound after the other.",
        ),
    ] = None  # fmt: skip

    def paths(self, sounds: Sequence[str]) -> dict[str, dict[str, Path]]:
        """Return the files of each sound by their kind. Raises UsageError if one cannot be written."""
        kinds = [kind for kind in KINDS if getattr(self, kind)]
        names = self.name or []
        if names and not kinds:
            raise UsageError("--output-file: nothing is written without -otxt, -osrt, -ovtt or -oj")
        if len(names) > len(sounds):
            raise UsageError(f"--output-file: there are {len(names)} names for {len(sounds)} sounds")
        return {
            sound: {kind: writable_path(f"--output-{kind}", f"{name}.{kind}") for kind in kinds}
            for sound, name in zip(sounds, [*names, *sounds[len(names) :]], strict=True)
        }


@dataclass(frozen=True, kw_only=True)
class SpeechOptions:
    """What is known of the speech, and how it is cut."""

    language: Annotated[
        str, typer.Option("-l", "--language", metavar="LANG", help="Language of the speech: en, German, ..., or auto.")
    ] = "auto"
    chunk: Annotated[
        float | None,
        typer.Option(
            "--chunk", metavar="SECONDS", min=SHORTEST_CHUNK, max=LONGEST_CHUNK,
            help="Length of a chunk at most. Times of language models are those of chunks, so shorter ones give finer "
            "times. [default: 30, or 56 for Parakeet]",
        ),
    ] = None  # fmt: skip


class UnreadableSoundError(LocalInferError):
    """A file that cannot be read or decoded. The others are transcribed nevertheless."""


@with_options("model", "media", names=SAMPLING, without=NOT_OF_SOUNDS, defaults=DEFAULTS)
def transcribe_command(
    model: ModelArgument,
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Sounds: WAV, FLAC, MP3 or Ogg.")],
    given: Layer,
    *,
    speech: SpeechOptions,
    output: TranscriptFiles,
) -> None:
    """Transcribe speech: audio to text.

    MODEL is a language model that reads sounds with its projector (mmproj), as Voxtral, LFM2-Audio and Granite do: it
    transcribes chunks of at most 30 seconds, cut at quiet places. Or it is Parakeet, which gives the time of each word.
    The text is written to stdout, a line for each chunk or sentence; files are written when a sound is finished. If a
    sound cannot be read, the others are transcribed, and the exit code is not 0.

    \b
    Examples:
      localinfer transcribe hf:ggml-org/Voxtral-Mini-3B-2507-GGUF:Q4_K_M meeting.mp3 > meeting.txt
      localinfer transcribe parakeet.gguf -osrt interview.wav
      localinfer transcribe voxtral.gguf --mmproj mmproj.gguf -l de -osrt interview.wav
      localinfer transcribe voxtral.gguf -otxt -ovtt --chunk 10 monday.flac tuesday.flac
    """
    from localinfer.transcription.languages import language_code

    language = language_code(speech.language)
    require_known_model(model)
    for name in files:
        require_file(name)
    paths, status = output.paths(files), screen.Status()
    with open_transcriber(model, given, language, speech.chunk, status) as transcriber:
        problems = []
        for name in files:
            try:
                sound = read(name)
            except UnreadableSoundError as error:
                problems.append(error)
                continue
            write_files(paths[name], transcribe(transcriber, name, sound), model, language)
    for problem in problems[:-1]:
        screen.error(str(problem), problem.exit_code)
    if problems:
        raise problems[-1]


def require_file(name: str) -> None:
    """Raise UsageError unless a file exists."""
    try:
        if not Path(name).is_file():
            raise UsageError(f"{printable(name)}: no such file")
    except (OSError, ValueError) as error:
        raise UsageError(f"{printable(name)}: {error}") from None


def read(name: str) -> "Sound":
    """Return the sound in a file. Raises UnreadableSoundError."""
    from localinfer.multimodal.reading import read_sound
    from localinfer.multimodal.sound_process import require_readable_size

    try:
        require_readable_size(Path(name).stat().st_size, name)
        return read_sound(Path(name).read_bytes(), name)
    except LocalInferError as error:
        raise UnreadableSoundError(str(error)) from None
    except OSError as error:
        raise UnreadableSoundError(f"{printable(name)}: {error.strerror}") from None


@contextmanager
def open_transcriber(
    name: str, given: Layer, language: str, chunk: float | None, status: screen.Status
) -> "Iterator[Transcribe]":
    """Open a model, and yield the function that transcribes a sound. Raises UnsupportedError if it reads no sounds."""
    from localinfer.architectures import SPEECH_RECOGNITION
    from localinfer.gguf.reader import open_gguf
    from localinfer.transcription.transcriber import transcribe

    layer = combine(given, from_environment(os.environ), DEFAULTS)
    find_or_fetch_with_projector(name, layer, status)
    path = find_or_fetch(name, status)
    if open_gguf(path).architecture == SPEECH_RECOGNITION:
        with open_recognizer(path, given, language, chunk, status) as recognizer:
            yield recognizer
        return
    with closing(open_model(name, layer, status)) as model:
        _ = model.projector.sound_type  # raises an error if the model reads no sounds
        limit = max(0, model.options.n_predict)
        yield lambda sound, progress: transcribe(
            model, sound, language=language, chunk_seconds=chunk or LONGEST_CHUNK, max_tokens=limit,
            on_progress=progress,
        )  # fmt: skip


@contextmanager
def open_recognizer(
    path: Path, given: Layer, language: str, chunk: float | None, status: screen.Status
) -> "Iterator[Transcribe]":
    """Open a speech recognition model. Raises UsageError for options that it does not have."""
    from cli.models import sigbus_handler
    from localinfer.transcription.recognizer import CHUNK_SECONDS, SpeechRecognizer

    if language:
        raise UsageError("--language: a speech recognition model cannot be told the language; leave it out")
    if others := [option for option in given if option not in OF_RECOGNIZERS]:
        raise UsageError(f"{FLAGS[others[0]].long_name}: a speech recognition model does not have this option")
    options = merge(given, from_environment(os.environ))
    with status.busy(f"loading {screen.one_line(str(path))}"):
        model = SpeechRecognizer(path, options, status)
        sigbus_handler.install(screen.one_line(str(path)))
    with model:
        yield lambda sound, progress: model.transcribe(
            sound, chunk_seconds=chunk or CHUNK_SECONDS, on_progress=progress
        )


def transcribe(transcriber: "Transcribe", name: str, sound: "Sound") -> "list[Segment]":
    """Return the segments of a sound, each of which is printed as soon as it is known."""
    from localinfer.transcription.formats import as_text, time_stamp

    progress, segments = SoundProgress(name), []
    for segment in transcriber(sound, progress):
        progress.status.erase()
        screen.write(as_text([segment]))
        sys.stdout.flush()
        if not segment.is_complete:
            at = time_stamp(segment.start, ".")
            screen.warn(f"{name}: the text from {at} on may be cut; -n N allows more tokens, --chunk fewer seconds")
        segments.append(segment)
    return segments


class SoundProgress:
    """Shows how much of a sound is transcribed, and the time that is left."""

    def __init__(self, name: str) -> None:
        self.name, self.status = name, screen.Status()
        self.start_time = time.monotonic()

    def __call__(self, done: float, total: float) -> None:
        if done >= total:
            self.status.erase()
            return
        shown = f"{screen.one_line(self.name)}: {screen.clock(done)} of {screen.clock(total)} transcribed"
        if done:
            shown += f", {screen.time_left(int(1000 * done), int(1000 * total), time.monotonic() - self.start_time)}"
        self.status.show(shown)


def write_files(paths: Mapping[str, Path], segments: "list[Segment]", model: str, language: str) -> None:
    """Write the files of a sound, each atomically."""
    from localinfer.transcription.formats import as_json, as_srt, as_text, as_vtt

    contents: dict[str, Callable[[], str]] = {
        "txt": lambda: as_text(segments),
        "srt": lambda: as_srt(segments),
        "vtt": lambda: as_vtt(segments),
        "json": lambda: as_json(segments, model, language),
    }
    for kind, path in paths.items():
        write_atomically(path, contents[kind]().encode())

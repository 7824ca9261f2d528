"""Transcribes with a speech recognition model, which needs no language model: text with the time of each word."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from localinfer.errors import LocalInferError
from localinfer.gguf.reader import GGUF, open_gguf
from localinfer.machine import resources
from localinfer.multimodal.media import SAMPLE_RATE, Sound
from localinfer.options import Options
from localinfer.speech_recognition.decoding import Decoding, make_decoding
from localinfer.speech_recognition.encoder import encode
from localinfer.speech_recognition.prediction_network import read_head
from localinfer.speech_recognition.recognition_file import SECONDS_PER_ROW, TDT, recognition_file
from localinfer.speech_recognition.words import ENDS_WITHOUT_SPACE, Word, WordBuilder, join
from localinfer.transcription.transcriber import Progress, Segment
from quant.jit.loader import Progress as LoadProgress

CHUNK_SECONDS = 56.0  # of sound whose rows are kept of a window of 64 s
SENTENCE_ENDS = tuple(f".?!…{ENDS_WITHOUT_SPACE}")
PAUSE, LONGEST_SEGMENT = 1.0, 20.0  # seconds


class SpeechRecognizer:
    """A speech recognition model, such as Parakeet. One thread at a time uses it.

    Raises LocalInferError for an invalid file, UnsupportedError for a model that cannot run, UsageError for a model of
    another kind. `progress` is called while kernels are compiled.
    """

    def __init__(
        self, path: str | Path, options: Options | None = None, progress: LoadProgress | None = None
    ) -> None:
        self._options, self._progress = options or Options(), progress
        self._file = recognition_file(in_memory_if_wanted(open_gguf(path), self._options, progress))
        self._weights = read_head(self._file)
        self._closed = False

    def transcribe(
        self, sound: Sound, *, chunk_seconds: float = CHUNK_SECONDS, on_progress: Progress | None = None
    ) -> Iterator[Segment]:
        """Yield the sentences of a sound with their words. A pause of a second ends a segment, too.

        The encoder reads `chunk_seconds` at once, and 4 seconds before and after them. Raises NotEnoughMemoryError, and
        LocalInferError if the file has changed.
        """
        if self._closed:
            raise LocalInferError("the model is closed")
        decoding, total = make_decoding(self._file, self._weights), len(sound.samples) / SAMPLE_RATE
        words = WordBuilder(self._file.pieces, SECONDS_PER_ROW, total, has_durations=self._file.head == TDT)
        yield from segments(self._words(sound, decoding, words, chunk_seconds, on_progress))
        if on_progress:
            on_progress(total, total)

    def _words(
        self, sound: Sound, decoding: Decoding, words: WordBuilder, chunk_seconds: float, on_progress: Progress | None
    ) -> Iterator[Word]:
        """Yield the words of a sound as soon as they are known."""
        done, total = 0.0, len(sound.samples) / SAMPLE_RATE
        if on_progress:
            on_progress(done, total)
        for rows in encode(self._file, sound, chunk_seconds, self._options, self._progress):
            yield from words.feed(decoding.feed(rows))
            done += len(rows) * SECONDS_PER_ROW
            if on_progress and done < total:
                on_progress(done, total)
        yield from words.feed(decoding.finish())
        yield from words.finish()

    def close(self) -> None:
        """Release the weights; later calls raise LocalInferError."""
        self._closed = True
        self._weights = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def in_memory_if_wanted(f: GGUF, options: Options, progress: LoadProgress | None) -> GGUF:
    """Return the file mapped as it is, or read into memory if `options.mmap` is off. Raises NotEnoughMemoryError."""
    if options.mmap:
        return f
    from localinfer.gguf.in_memory import read_into_memory

    return read_into_memory(f, options.threads or resources.default_threads(), progress)


def segments(words: Iterable[Word]) -> Iterator[Segment]:
    """Divide words into segments: at the ends of sentences, at pauses, and where a segment would be too long."""
    found: list[Word] = []
    for word in words:
        if found and (word.start - found[-1].end >= PAUSE or word.end - found[0].start > LONGEST_SEGMENT):
            yield segment_of(found)
            found = []
        found.append(word)
        if word.text.endswith(SENTENCE_ENDS):
            yield segment_of(found)
            found = []
    if found:
        yield segment_of(found)


def segment_of(words: list[Word]) -> Segment:
    """Return the segment that consists of these words."""
    return Segment(words[0].start, words[-1].end, join(words), words=tuple(words))

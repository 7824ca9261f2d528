"""Transcribes a sound chunk by chunk. The times of a segment are those of its chunk."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localinfer.generation.result import GenerationResult
from localinfer.multimodal.media import SAMPLE_RATE, Sound
from localinfer.speech_recognition.words import Word
from localinfer.transcription.chunks import cut, is_silent
from localinfer.transcription.prompts import prompt_for

if TYPE_CHECKING:
    from localinfer.model.model import Model

MAX_TOKENS_PER_SECOND = 16  # fast speech has 6; a model that repeats itself has no end
MIN_TOKENS = 64

Progress = Callable[[float, float], None]  # receives the seconds that are done, and all


@dataclass(frozen=True)
class Segment:
    """The text of a part of a sound, in seconds from its start. `is_complete` is false if the model wrote more tokens
    than it may. `words` are empty if the model gives no times of words."""

    start: float
    end: float
    text: str
    language: str = ""
    is_complete: bool = True
    words: tuple[Word, ...] = ()


def transcribe(
    model: "Model", sound: Sound, *, language: str = "", chunk_seconds: float = 30.0, max_tokens: int = 0,
    on_progress: Progress | None = None, options: Mapping[str, object] | None = None,
    check: Callable[[], None] = lambda: None,
) -> Iterator[Segment]:  # fmt: skip
    """Yield a segment for each chunk of a sound. `language` is a code such as "de"; "" leaves it to the model.

    A segment has at most `max_tokens` tokens; 0 stands for more than speech of its length can have. Silent chunks have
    no segment. `options` are options of generation that replace the model's. `check` is called after each token; an
    exception that it raises ends the transcription. Raises UnsupportedError if the model reads no sounds,
    ContextOverflowError if a chunk does not fit in the context.
    """
    prompt, samples = prompt_for(model.projector.sound_type), sound.samples
    total = len(samples) / SAMPLE_RATE
    for chunk in cut(samples, chunk_seconds):
        if on_progress:
            on_progress(chunk.start / SAMPLE_RATE, total)
        part = samples[chunk.start : chunk.end]
        if is_silent(part):
            continue
        start, end = chunk.start / SAMPLE_RATE, chunk.end / SAMPLE_RATE
        limit = max_tokens or max(MIN_TOKENS, int(MAX_TOKENS_PER_SECOND * (end - start)))
        with prompt.start(model, Sound(part), language, {"n_predict": limit, **(options or {})}) as stream:
            pieces = []
            for piece in stream:
                pieces.append(piece)
                check()
            result = GenerationResult.from_pieces(pieces, stream.stats)
        found = prompt.read(result.text)
        if found.text:
            yield Segment(start, end, found.text, language or found.language, result.finish_reason != "length")
    if on_progress:
        on_progress(total, total)

"""Runs the encoder on windows of a long sound. Attention sees all rows of a window, so its cost grows with the square
of its length; windows overlap, and rows that have too little of the sound around them are those of the next window."""

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from localinfer.multimodal.encoder_graph.compiled_encoder import CompiledEncoder
from localinfer.multimodal.encoder_graph.encoder_tensors import Floats
from localinfer.multimodal.media import Sound
from localinfer.multimodal.sounds.encoders import conformer
from localinfer.options import Options
from localinfer.speech_recognition.recognition_file import SECONDS_PER_ROW, RecognitionFile
from quant.jit.loader import Progress

CONTEXT_ROWS = round(4 / SECONDS_PER_ROW)  # of the 4 s before and after a chunk, to which its rows attend


class Window(NamedTuple):
    """Frames that are encoded together, from `first` to `last`, and its rows to keep, from `start` to `end`, counted
    from the beginning of the sound."""

    first: int
    last: int
    start: int
    end: int

    @property
    def n_frames(self) -> int:
        return self.last - self.first


def windows(n_frames: int, chunk_rows: int, context_rows: int) -> list[Window]:
    """Divide a spectrogram into windows whose kept rows follow each other: `chunk_rows` of them each, with up to
    `context_rows` before and after them. A sound that is not longer than such a window has only one."""
    factor, n_rows = conformer.FACTOR, -(-n_frames // conformer.FACTOR)
    if n_rows <= chunk_rows + 2 * context_rows:
        return [Window(0, n_frames, 0, n_rows)]
    starts = range(0, n_rows, chunk_rows)
    if n_rows - starts[-1] <= context_rows:
        starts = starts[:-1]  # the window before it has these rows already
    ends = [*starts[1:], n_rows]
    return [
        Window(max(0, start - context_rows) * factor, min(n_frames, (end + context_rows) * factor), start, end)
        for start, end in zip(starts, ends, strict=True)
    ]


def encode(
    file: RecognitionFile, sound: Sound, chunk_seconds: float, options: Options, progress: Progress | None = None
) -> Iterator[Floats]:
    """Yield the rows of a sound, float32 (rows, n), window by window.

    Raises NotEnoughMemoryError, and LocalInferError if the file has changed.
    """
    features = file.make_processor()(sound).features
    found = windows(len(features), max(1, round(chunk_seconds / SECONDS_PER_ROW)), CONTEXT_ROWS)
    for n_frames, group in groupby(found, key=lambda window: window.n_frames):
        with CompiledEncoder(*file.build_encoder(n_frames, options), progress) as encoder:
            for window in group:
                file.f.check_unchanged()
                rows = encoder.run(conformer.prepare(features[window.first : window.last], [n_frames]))
                first_row = window.first // conformer.FACTOR
                yield rows[window.start - first_row : window.end - first_row]

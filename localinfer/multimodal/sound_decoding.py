"""Decoding of sounds by libsndfile, resampled by soxr."""

from collections.abc import Iterator
from io import BytesIO

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from localinfer.errors import LocalInferError
from localinfer.escaping import printable
from localinfer.multimodal.media import SAMPLE_RATE

MAX_SECONDS = 3600
SAMPLE_RATES = (1_000, 768_000)
BLOCK_VALUES = 1 << 20  # of all channels that are decoded at once
Samples = NDArray[np.float32]


def decode(data: bytes, name: str) -> Samples:
    """Return the samples of a sound: the mean of its channels, 16 kHz, from -1 to 1. Raises LocalInferError."""
    try:
        with soundfile.SoundFile(BytesIO(data)) as sound:
            rate, blocks = _checked_rate(sound.samplerate, name), _read_blocks(sound)
            samples = _resample(_limited(blocks, rate, name), rate)
    except LocalInferError:
        raise
    except MemoryError:
        raise LocalInferError(f"{printable(name)}: the sound needs more memory than there is") from None
    except Exception as error:  # decoders of damaged files raise whatever they stumble over
        problem = printable(" ".join(str(error).split()), 160) or type(error).__name__
        raise LocalInferError(f"{printable(name)}: the sound is damaged: {_cause(problem)}") from None
    if not len(samples):
        raise LocalInferError(f"{printable(name)}: the sound has no samples")
    return samples


def _cause(problem: str) -> str:
    """Return an error of libsndfile without the description of the file in memory."""
    return problem.rpartition("BytesIO object at ")[2].partition(">: ")[2] or problem


def _checked_rate(rate: int, name: str) -> int:
    lowest, highest = SAMPLE_RATES
    if not lowest <= rate <= highest:
        problem = f"a sample rate of {rate} Hz; it must be from {lowest} to {highest} Hz"
        raise LocalInferError(f"{printable(name)}: {problem}")
    return rate


def _read_blocks(sound: soundfile.SoundFile) -> Iterator[Samples]:
    """Yield blocks of samples, the mean of all channels. The length that a header states is not believed."""
    frames = max(1, BLOCK_VALUES // sound.channels)
    while len(block := sound.read(frames, dtype="float32", always_2d=True)):
        yield np.nan_to_num(block.mean(axis=1, dtype=np.float32), nan=0.0, posinf=1.0, neginf=-1.0)


def _limited(blocks: Iterator[Samples], rate: int, name: str) -> Iterator[Samples]:
    """Yield the blocks. Raises LocalInferError after the longest sound that is read."""
    n_frames = 0
    for block in blocks:
        n_frames += len(block)
        if n_frames > MAX_SECONDS * rate:
            raise LocalInferError(f"{printable(name)}: the sound is longer than {MAX_SECONDS // 60} minutes")
        yield block


def _resample(blocks: Iterator[Samples], rate: int) -> Samples:
    """Return the samples at 16 kHz."""
    if rate == SAMPLE_RATE:
        parts = list(blocks)
    else:
        stream = soxr.ResampleStream(rate, SAMPLE_RATE, 1, dtype="float32")
        parts = [stream.resample_chunk(block) for block in blocks]
        parts.append(stream.resample_chunk(np.empty(0, np.float32), last=True))
    samples = np.concatenate(parts, dtype=np.float32) if parts else np.empty(0, np.float32)
    return np.clip(samples, -1, 1, out=samples)

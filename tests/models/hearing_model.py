"""A tiny model that hears: a random Llama with the projector of Ultravox of tests/data, and sounds for it."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import sound_projectors
import soundfile
from tiny import tiny_llama

RATE = 16_000


def write_hearing_model(folder: Path, **changes: Any) -> Path:
    """Write the model and its projector into a folder. Return the path of the model."""
    sound_projectors.write("ultravox", folder)
    return tiny_llama(folder / "hearing.gguf", n_embd=64, n_ff=128, n_head=1, n_head_kv=1, n_ctx=2048, **changes)


def speech(seconds: float, pauses: tuple[float, ...] = (), seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return noise with half a second of silence around each of the `pauses`, which are times in seconds."""
    t = np.arange(int(seconds * RATE)) / RATE
    samples = np.random.default_rng(seed).normal(0, 0.1, len(t)).clip(-1, 1)
    for pause in pauses:
        samples[np.abs(t - pause) < 0.25] = 0
    return samples.astype(np.float32)


def wav(samples: np.ndarray[Any, np.dtype[np.float32]]) -> bytes:
    """Return a WAV file."""
    file = io.BytesIO()
    soundfile.write(file, samples, RATE, format="WAV")
    return file.getvalue()

"""Spectrograms are those of transformers' feature extractors."""

import tracemalloc
from pathlib import Path

import made_sounds
import numpy as np
import pytest

from localinfer.multimodal.media import Sound
from localinfer.multimodal.sounds.gemma_mel import Gemma3nProcessor, Gemma4Processor
from localinfer.multimodal.sounds.granite_mel import GraniteProcessor
from localinfer.multimodal.sounds.mel import MelProcessor, log_mel
from localinfer.multimodal.sounds.nemo_mel import NemoProcessor
from localinfer.multimodal.sounds.raw_frames import RawFrames
from localinfer.multimodal.sounds.sound_input import SoundProcessor

REFERENCE = Path(__file__).parents[3] / "data" / "mel.npz"


@pytest.mark.parametrize("n_bands", [80, 128])
@pytest.mark.parametrize("name", made_sounds.SOUNDS)
def test_spectrograms_are_those_of_transformers(name: str, n_bands: int) -> None:
    with np.load(REFERENCE) as found:
        expected = found[f"{name}_{n_bands}"]
    features = log_mel(made_sounds.SOUNDS[name](), n_bands)
    assert len(features) == len(expected) * made_sounds.STRIDE
    assert np.abs(features[:: made_sounds.STRIDE] - expected).max() < 2e-5


@pytest.mark.parametrize("name", made_sounds.SOUNDS)
def test_spectrograms_of_nemo_are_those_of_transformers(name: str) -> None:
    with np.load(REFERENCE) as found:
        expected = found[f"{name}_nemo"]
    process, sound = NemoProcessor(128), Sound(made_sounds.SOUNDS[name]())
    spectrogram = process(sound)
    assert len(spectrogram.features) == spectrogram.n_frames == process.n_frames(len(sound.samples))
    assert np.abs(spectrogram.features[:: made_sounds.STRIDE] - expected).max() < 2e-5


@pytest.mark.parametrize("name", made_sounds.SOUNDS)
def test_spectrograms_of_granite_are_those_of_transformers(name: str) -> None:
    with np.load(REFERENCE) as found:
        expected = found[f"{name}_granite"]
    process, sound = GraniteProcessor(160), Sound(made_sounds.SOUNDS[name]())
    spectrogram = process(sound)
    assert len(spectrogram.features) == spectrogram.n_frames == process.n_frames(len(sound.samples))
    assert np.abs(spectrogram.features[:: made_sounds.STRIDE] - expected).max() < 2e-5


@pytest.mark.parametrize("n_samples", [0, 1, 511, 512])
def test_short_sounds_of_granite_have_2_rows(n_samples: int) -> None:
    features = GraniteProcessor(160)(Sound(made_sounds.chirp(1.0)[:n_samples])).features
    assert features.shape == (2, 160)
    assert np.isfinite(features).all()


@pytest.mark.parametrize("n_samples", [0, 1, 1439, 1440, 1600])
def test_short_sounds_of_nemo_have_9_frames_and_one_of_zeros(n_samples: int) -> None:
    features = NemoProcessor(80)(Sound(made_sounds.chirp(1.0)[:n_samples])).features
    assert features.shape == (10 + n_samples // 1600, 80)
    assert np.isfinite(features).all()
    assert not features[-1].any()


@pytest.mark.parametrize(("kind", "process"), [("gemma4", Gemma4Processor(128)), ("gemma3n", Gemma3nProcessor(128))])
@pytest.mark.parametrize("name", made_sounds.SOUNDS)
def test_spectrograms_of_gemma_are_those_of_transformers(name: str, kind: str, process: SoundProcessor) -> None:
    with np.load(REFERENCE) as found:
        expected = found[f"{name}_{kind}"]
    sound = Sound(made_sounds.SOUNDS[name]())
    spectrogram = process(sound)
    count = process.n_frames(len(sound.samples))
    assert len(spectrogram.features) == spectrogram.n_frames == count
    assert -(-count // made_sounds.STRIDE) == len(expected)
    assert np.abs(spectrogram.features[:: made_sounds.STRIDE] - expected).max() < 2e-5


@pytest.mark.parametrize(("n_samples", "n_frames"), [(0, 1), (1, 1), (640, 1), (641, 2), (480_000, 2997)])
def test_frames_of_gemma3n_end_within_the_completed_sound(n_samples: int, n_frames: int) -> None:
    spectrogram = Gemma3nProcessor(32)(Sound(made_sounds.chirp(30.0)[:n_samples]))
    assert spectrogram.features.shape == (n_frames, 32)
    assert np.isfinite(spectrogram.features).all()


@pytest.mark.parametrize(("n_samples", "n_frames"), [(0, 1), (1, 1), (320, 1), (321, 2), (480_000, 2999)])
def test_frames_of_gemma4_end_within_the_sound(n_samples: int, n_frames: int) -> None:
    spectrogram = Gemma4Processor(32)(Sound(made_sounds.chirp(30.0)[:n_samples]))
    assert spectrogram.features.shape == (n_frames, 32)
    assert np.isfinite(spectrogram.features).all()


@pytest.mark.parametrize(("n_samples", "n_frames"), [(0, 1), (1, 1), (640, 1), (1281, 3)])
def test_frames_of_samples_are_completed_by_silence(n_samples: int, n_frames: int) -> None:
    samples, process = made_sounds.chirp(1.0)[:n_samples], RawFrames(128)
    frames = process(Sound(samples))
    assert frames.n_frames == process.n_frames(n_samples) == n_frames
    assert frames.features.shape == (n_frames, 640)
    assert np.array_equal(frames.features.reshape(-1), np.pad(samples, (0, 640 * n_frames - n_samples)))


def test_the_frames_of_sound_are_counted() -> None:
    spectrogram = MelProcessor(80)(Sound(made_sounds.chirp(2.5)))
    assert (len(spectrogram.features), spectrogram.n_frames) == (3000, 250)
    assert MelProcessor(80).n_frames(1) == 1


@pytest.mark.parametrize("n_samples", [0, 1, 480_000])
def test_short_sounds_and_whole_chunks_have_3000_frames(n_samples: int) -> None:
    features = log_mel(np.zeros(n_samples, np.float32), 80)
    assert features.shape == (3000, 80)
    assert np.allclose(features, -1.5)


def test_memory_is_bounded_by_the_sound() -> None:
    samples = np.zeros(600 * made_sounds.RATE, np.float32)
    tracemalloc.start()
    log_mel(samples, 80)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * samples.nbytes

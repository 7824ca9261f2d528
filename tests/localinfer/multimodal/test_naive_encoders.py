"""The naive forward pass of every encoder has the rows of transformers, and its parts are those of the runtime."""

from collections.abc import Callable
from pathlib import Path

import made_sounds
import numpy as np
import projectors
import pytest
import sound_projectors

from cli import __main__
from localinfer.gguf.reader import open_gguf
from localinfer.multimodal.encoder_graph.naive_rows import naive_rows
from localinfer.multimodal.encoder_graph.positions import resample
from localinfer.multimodal.media import Sound
from localinfer.multimodal.projector_file import open_projector
from localinfer.multimodal.sounds.gemma_mel import Gemma3nProcessor, Gemma4Processor
from localinfer.multimodal.sounds.granite_mel import GraniteProcessor
from localinfer.multimodal.sounds.mel import MelProcessor
from localinfer.multimodal.sounds.nemo_mel import NemoProcessor
from localinfer.multimodal.sounds.sound_input import SoundProcessor
from localinfer.multimodal.sounds.spectrum import LogEnergies, log_energies
from localinfer.naive.encoders import spectrogram
from localinfer.naive.encoders.interpolation import interpolated
from localinfer.options import Options

TOLERANCE = 1e-5  # of the largest value: transformers computes with 32-bit floats


@pytest.mark.parametrize("name", projectors.NAMES)
def test_rows_of_images_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    file, reference = open_projector(projectors.write(name, tmp_path), None), projectors.reference(name)
    for case in reference.cases:
        rows = naive_rows(*file.build(case.grid, Options(threads=1)), case.patches)
        assert rows.dtype == np.float64
        assert np.abs(rows - case.rows).max() <= TOLERANCE * np.abs(case.rows).max()


@pytest.mark.parametrize("name", sound_projectors.NAMES)
def test_rows_of_sounds_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    sound = open_projector(sound_projectors.write(name, tmp_path), None).sound_encoder
    for case in sound_projectors.cases(name):
        _, n_frames = sound.framing.windows(case.spectrogram.n_frames)[0]
        seen = case.spectrogram.features[: sound.framing.window]
        patches = sound.family.prepare(seen, sound.framing.lengths(n_frames))
        rows = naive_rows(*sound.build(n_frames, Options(threads=1)), patches)
        assert np.abs(rows - case.rows[: len(rows)]).max() <= TOLERANCE * np.abs(case.rows).max()


def test_a_quantized_file_is_decoded_and_nothing_is_rounded(tmp_path: Path) -> None:
    path, quantized = projectors.write("gemma3", tmp_path), tmp_path / "q8_0.gguf"
    assert __main__.run(["quantize", str(path), str(quantized), "Q8_0"]) == 0
    assert "Q8_0" in {tensor.type_name for tensor in open_gguf(quantized).tensors.values()}
    case = projectors.reference("gemma3").cases[0]
    rows = [
        naive_rows(*open_projector(quantized, None).build(case.grid, Options(threads=1, precision=each)), case.patches)
        for each in ("fast", "high")
    ]
    np.testing.assert_array_equal(*rows)
    assert 1e-4 < np.abs(rows[0] - case.rows).max() / np.abs(case.rows).max() < 0.05


@pytest.mark.parametrize("grid", [(3, 9), (7, 5), (12, 2)])
@pytest.mark.parametrize("kind", ["linear", "cubic"])
@pytest.mark.parametrize("how", [{}, {"align_corners": True}, {"antialias": True}, {"zeros_beyond": True}])
def test_positions_are_interpolated_as_by_a_matrix(grid: tuple[int, int], kind: str, how: dict[str, bool]) -> None:
    table = np.random.default_rng(0).standard_normal((6, 5, 8), np.float32)
    expected = resample(table, grid, kind, **how)
    actual = interpolated(table.astype(np.float64), grid, kind, **how)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "process", [MelProcessor, NemoProcessor, GraniteProcessor, Gemma4Processor, Gemma3nProcessor]
)
def test_spectrograms_follow_from_the_definition_of_the_transform(
    process: Callable[[int, LogEnergies], SoundProcessor]
) -> None:
    sound = Sound(made_sounds.chirp(0.7))
    expected, features = (process(80, each)(sound).features for each in (spectrogram.log_energies, log_energies))
    assert expected.dtype == np.float64
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, expected, rtol=0, atol=1e-5)

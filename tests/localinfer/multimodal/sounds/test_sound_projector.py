"""Projectors with sound encoders: text around rows, results that are kept, files with both encoders, and refusals."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import projectors
import pytest
import sound_projectors

from localinfer.errors import LocalInferError, UnsupportedError, UsageError
from localinfer.gguf.reader import open_gguf
from localinfer.multimodal import projector_file
from localinfer.multimodal.media import Image, Sound
from localinfer.multimodal.projector import Projector
from localinfer.multimodal.projector_file import open_projector
from localinfer.multimodal.sounds.framing import CHUNK_FRAMES, Framing, neighbours
from localinfer.multimodal.sounds.sound_tensors import SoundTensors
from localinfer.options import Options
from localinfer.runtime.media.media_embeddings import MediaEmbeddings

OPTIONS = Options(threads=2)


def sound(seconds: float, seed: int = 20) -> Sound:
    noise = np.random.default_rng(seed).normal(0, 0.1, int(seconds * 16_000))
    return Sound(noise.astype(np.float32))


def test_a_sound_of_qwen2_audio_has_tokens_around_its_rows(tmp_path: Path) -> None:
    projector = Projector(sound_projectors.opened("qwen2a", tmp_path), OPTIONS)
    begin, rows, end = projector.encode(sound(2.0))
    assert (begin, end) == ("<|audio_bos|>", "<|audio_eos|>")
    assert isinstance(rows, MediaEmbeddings)
    assert len(rows) == rows.n_positions == 50
    assert projector.layout(sound(2.0)) == [begin, 50, end]


def test_qwen25_omni_reads_images_and_sounds(tmp_path: Path) -> None:
    file = sound_projectors.opened("qwen2_5o", tmp_path)
    projector = Projector(file, OPTIONS)
    assert projector.kinds == {"image", "audio"}
    begin, rows, end = projector.encode(sound(2.0))
    assert (begin, end) == ("<|audio_bos|>", "<|audio_eos|>")
    assert isinstance(rows, MediaEmbeddings)
    assert (len(rows), rows.n_positions, rows.coordinates) == (50, 50, None)
    layout = projector.layout(Image(np.zeros((280, 420, 3), np.uint8)))
    assert layout == ["<|vision_start|>", 150, "<|vision_end|>"]


@pytest.mark.parametrize("name", ["qwen2a", "qwen2_5o", "lfm2a", "granite_speech", "parakeet"])
def test_the_shortest_sounds_have_rows(name: str, tmp_path: Path) -> None:
    projector = Projector(sound_projectors.opened(name, tmp_path), OPTIONS)
    for n_samples in (1, 200):
        parts = projector.encode(Sound(np.full(n_samples, 0.1, np.float32)))
        [rows] = [part for part in parts if isinstance(part, MediaEmbeddings)]
        assert len(rows) >= 1
        assert np.isfinite(rows.rows).all()


@pytest.mark.parametrize(("name", "counts"), [("ultravox", [188, 13]), ("voxtral", [375, 375])])
def test_long_sounds_are_encoded_in_chunks_of_30_s(name: str, counts: list[int], tmp_path: Path) -> None:
    projector = Projector(sound_projectors.opened(name, tmp_path), OPTIONS)
    parts = projector.encode(sound(32.0))
    assert [len(part) for part in parts if isinstance(part, MediaEmbeddings)] == counts
    assert [part for part in parts if isinstance(part, str)] == (["[BEGIN_AUDIO]"] if name == "voxtral" else [])


def test_a_sound_is_encoded_once_and_others_have_other_digests(tmp_path: Path) -> None:
    projector = Projector(sound_projectors.opened("ultravox", tmp_path), OPTIONS)
    first, second, other = (projector.encode(sound(1.0, seed))[0] for seed in (1, 1, 2))
    assert first is second
    assert isinstance(first, MediaEmbeddings)
    assert isinstance(other, MediaEmbeddings)
    assert first.digest != other.digest


def test_a_file_that_is_read_into_memory_gives_the_same_rows(tmp_path: Path) -> None:
    file = sound_projectors.opened("ultravox", tmp_path)
    mapped, read = (Projector(file, replace(OPTIONS, mmap=mmap)).encode(sound(1.0))[0] for mmap in (True, False))
    assert isinstance(mapped, MediaEmbeddings)
    assert isinstance(read, MediaEmbeddings)
    assert mapped.digest == read.digest


def test_a_file_can_have_encoders_of_images_and_sounds(tmp_path: Path) -> None:
    model = open_gguf(sound_projectors.language_model("ultravox", tmp_path))
    file = open_projector(sound_projectors.write_both("idefics3", "ultravox", tmp_path), model)
    case = sound_projectors.cases("ultravox")[1]
    alone = Projector(file, OPTIONS, processor=object(), sound_processor=sound_projectors.ReferenceProcessor(case))  # type: ignore[arg-type]
    assert alone.kinds == {"image", "audio", "video"}
    [rows] = alone.encode(sound(1.0))
    assert isinstance(rows, MediaEmbeddings)
    assert np.abs(rows.rows - case.rows).max() < 1e-4 * np.abs(case.rows).max()
    grid = projectors.reference("idefics3").cases[0].grid
    assert file.build(grid, OPTIONS)[1].n == 64


def test_a_sound_of_gemma3n_has_188_rows(tmp_path: Path) -> None:
    file = sound_projectors.opened("gemma3na", tmp_path)
    projector, sound = Projector(file, Options(threads=2)), Sound(np.ones(32_000, np.float32))
    begin, rows, end = projector.encode(sound)
    assert (begin, end) == ("\n\n<start_of_audio>", "<end_of_audio>\n\n")
    assert isinstance(rows, MediaEmbeddings)
    assert projector.layout(sound) == [begin, 188, end]
    silent = (rows.rows == rows.rows[-1]).all(1)
    assert silent.sum() == silent[13:].sum() == 188 - 13


def test_gemma3n_reads_images_if_the_encoder_of_sounds_is_incomplete(tmp_path: Path) -> None:
    path = sound_projectors.write_both("gemma3nv", "gemma3na", tmp_path)
    model = open_gguf(projectors.language_model(projectors.reference("gemma3nv"), tmp_path))
    assert Projector(open_projector(path, model), Options(threads=2)).kinds == {"image", "audio"}
    content = path.read_bytes()
    path.write_bytes(content.replace(b"a.conv1d.0.norm.weight", b"a.conv1d.0.mean.weight"))
    assert Projector(open_projector(path, model), Options(threads=2)).kinds == {"image"}


def test_images_are_refused_by_a_projector_of_sounds(tmp_path: Path) -> None:
    projector = Projector(sound_projectors.opened("ultravox", tmp_path), OPTIONS)
    assert projector.kinds == {"audio"}
    image = Image(np.zeros((4, 4, 3), np.uint8))
    for refused in (projector.encode, projector.layout):
        with pytest.raises(UnsupportedError, match="ultravox does not encode images"):
            refused(image)
    projector.close()
    with pytest.raises(LocalInferError, match="the projector is closed"):
        projector.encode(sound(1.0))


def test_the_projector_of_another_model_is_refused(tmp_path: Path) -> None:
    path = sound_projectors.write("qwen2a", tmp_path)
    other_size = open_gguf(sound_projectors.language_model("qwen2a", tmp_path, embedding_length=128))
    with pytest.raises(UsageError, match=r"projection_dim: is 64; the embedding length of model\.gguf is 128"):
        open_projector(path, other_size)
    other = open_gguf(sound_projectors.language_model("ultravox", tmp_path))
    with pytest.raises(UsageError, match="qwen2a belongs to qwen2 models, not to llama"):
        open_projector(path, other)


def test_too_few_positions_are_refused(tmp_path: Path) -> None:
    f = open_gguf(sound_projectors.write("qwen2a", tmp_path))
    with pytest.raises(LocalInferError, match=r"a\.position_embd\.weight: has 1500 rows; 1501 are needed"):
        SoundTensors(f, 3, {}).positions(1501, 32)


@pytest.mark.parametrize("layers", ["3", [4], [-1], [0.5], []])
def test_layers_that_granite_speech_plus_does_not_have_are_refused(
    layers: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = open_gguf(sound_projectors.language_model("granite_speech_plus", tmp_path))
    f = open_gguf(sound_projectors.write("granite_speech_plus", tmp_path))
    value = np.array(layers) if isinstance(layers, list) else layers
    changed = replace(f, metadata={**f.metadata, "clip.audio.feature_layer": value})
    monkeypatch.setattr(projector_file, "open_gguf", lambda _path: changed)
    with pytest.raises(LocalInferError, match=r"feature_layer: must be numbers of layers up to 3|cross_attn_k"):
        open_projector(f.path, model)


def test_other_spectrograms_than_those_of_nemo_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = open_gguf(sound_projectors.language_model("parakeet", tmp_path))
    f = open_gguf(sound_projectors.write("parakeet", tmp_path))
    for name in ("a.window", "a.mel_filters"):
        other = replace(f.tensors[name], data=np.zeros_like(f.tensors[name].data))
        changed = replace(f, tensors={**f.tensors, name: other})
        monkeypatch.setattr(projector_file, "open_gguf", lambda _path, changed=changed: changed)
        with pytest.raises(UnsupportedError, match=rf"{name}: is not the one of NeMo's spectrograms"):
            open_projector(f.path, model)


def test_parts_are_convolved_alone() -> None:
    features = np.arange(1, 6, dtype=np.float32)[:, None]
    assert neighbours(features, [2, 3]).tolist() == [[0, 1, 2], [1, 2, 0], [0, 3, 4], [3, 4, 5], [4, 5, 0]]


def test_windows_cover_all_frames() -> None:
    assert Framing(unit=2).windows(2 * CHUNK_FRAMES + 3) == [(0, 3000), (3000, 3000), (6000, 4)]
    assert Framing(chunk=100, halvings=3).lengths(250) == [100, 100, 50]
    assert [Framing(halvings=3).positions(length) for length in (100, 50, 1)] == [13, 7, 1]

"""Parakeet with each kind of head gives the rows, logits, tokens, texts and times of transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import parakeet_checkpoints
import parakeet_files
import parakeet_model
import pytest
from numpy.typing import NDArray

from localinfer.multimodal.encoder_graph.naive_rows import naive_rows
from localinfer.multimodal.media import SAMPLE_RATE, Sound
from localinfer.multimodal.sounds.encoders import conformer
from localinfer.options import Options
from localinfer.speech_recognition.decoding import RecognizedToken, make_decoding
from localinfer.speech_recognition.encoder import encode, windows
from localinfer.speech_recognition.prediction_network import JointNetwork, PredictionNetwork, read_head
from localinfer.speech_recognition.recognition_file import SECONDS_PER_ROW, RecognitionFile, open_recognition_file
from localinfer.transcription.recognizer import SpeechRecognizer

NAMES = sorted(parakeet_checkpoints.CONFIGS)
BLANK = parakeet_checkpoints.N_PIECES
TOLERANCE = 1e-4  # of the largest value
Floats = NDArray[np.float32]


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def path(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return parakeet_files.write_model(name, tmp_path_factory.mktemp("parakeet") / f"{name}.gguf")


@pytest.fixture(scope="module")
def file(path: Path) -> RecognitionFile:
    return open_recognition_file(path)


@pytest.fixture(scope="module")
def rows(file: RecognitionFile) -> Floats:
    return np.concatenate(list(encode(file, Sound(parakeet_checkpoints.sound()), 56.0, Options(threads=2))))


@pytest.fixture(scope="module")
def expected(name: str) -> dict[str, Any]:
    with np.load(parakeet_checkpoints.DATA / f"{name}.npz") as found:
        return dict(found)


def error(found: NDArray[Any], expected: NDArray[Any]) -> float:
    """Return the largest difference, as a part of the largest value."""
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def decode(file: RecognitionFile, *parts: Floats) -> list[RecognizedToken]:
    decoding = make_decoding(file, read_head(file))
    return [*(token for part in parts for token in decoding.feed(part)), *decoding.finish()]


def test_the_encoder_and_the_naive_one_make_the_rows_of_transformers(
    file: RecognitionFile, rows: Floats, expected: dict[str, Any]
) -> None:
    features = file.make_processor()(Sound(parakeet_checkpoints.sound())).features
    graph = file.build_encoder(len(features), Options())
    naive = naive_rows(*graph, conformer.prepare(features, [len(features)]))
    assert error(naive, expected["rows"]) < 1e-5
    assert error(rows, expected["rows"]) < TOLERANCE


def test_the_head_has_the_logits_of_transformers(
    name: str, file: RecognitionFile, rows: Floats, expected: dict[str, Any]
) -> None:
    weights = read_head(file)
    if name == "ctc":
        logits = rows @ weights["decoder.decoder_layers.0.weight"].T + weights["decoder.decoder_layers.0.bias"]
    else:
        joint = JointNetwork(weights)
        predicted = joint.project_prediction(PredictionNetwork(weights, file.n_lstm_layers).step(BLANK))
        logits = np.stack([joint.logits(row, predicted) for row in joint.project_rows(rows)])
    assert error(logits, expected["logits"]) < TOLERANCE


def test_tokens_are_those_of_transformers(
    name: str, file: RecognitionFile, rows: Floats, expected: dict[str, Any]
) -> None:
    """Its sequences of transducers begin with the blank that the first prediction is for."""
    config, tokens = parakeet_checkpoints.CONFIGS[name], decode(file, rows)
    weights = {key: each.astype(np.float64) for key, each in parakeet_checkpoints.weights(name).items()}
    if name == "ctc":
        naive = [step.token for step in parakeet_model.ctc_steps(weights, rows.astype(np.float64))]
        assert naive == expected["tokens"].tolist()
        ids = [token for token, before in zip(naive, [BLANK, *naive], strict=False) if token not in (before, BLANK)]
    else:
        steps = list(parakeet_model.transducer_steps(weights, config, rows.astype(np.float64)))
        assert [step.token for step in steps] == expected["tokens"].tolist()[1:]
        assert [step.advance for step in steps] == expected["durations"].tolist()[1:]
        assert [token.start for token in tokens] == [step.frame for step in steps if step.token != BLANK]
        ids = [step.token for step in steps if step.token != BLANK]
    assert len(set(ids)) >= 4
    assert [token.id for token in tokens] == ids


def test_rows_may_arrive_in_parts(file: RecognitionFile, rows: Floats) -> None:
    whole = decode(file, rows)
    assert decode(file, *np.split(rows, [1, 2, 20, 21, 22, 23, 24, 60])) == whole
    assert decode(file, *(rows[number : number + 1] for number in range(len(rows)))) == whole


def test_text_and_times_are_those_of_transformers(
    name: str, path: Path, file: RecognitionFile, rows: Floats, expected: dict[str, Any]
) -> None:
    with SpeechRecognizer(path, Options(threads=2)) as model:
        segments = list(model.transcribe(Sound(parakeet_checkpoints.sound())))
    assert " ".join(segment.text for segment in segments) == " ".join(str(expected["text"]).split())
    times = [word.start for segment in segments for word in segment.words]
    assert times == sorted(times)
    if name == "tdt":
        tokens = decode(file, rows)
        assert np.allclose([token.start * SECONDS_PER_ROW for token in tokens], expected["starts"])
        assert np.allclose([token.end * SECONDS_PER_ROW for token in tokens], expected["ends"])


@pytest.mark.parametrize("head", ["rnnt", "tdt"])
def test_a_row_has_a_largest_number_of_tokens(head: str, tmp_path: Path) -> None:
    """Tokens without a duration would be repeated forever."""
    file = open_recognition_file(parakeet_files.write_model(head, tmp_path / "model.gguf"))
    weights, rows = read_head(file), np.zeros((5, file.n_rows), np.float32)
    bias = weights["joint.joint_net.2.bias"].copy()
    bias[7] += 1e6
    bias[BLANK + 1 : BLANK + 2] += 1e6  # a duration of 0
    tokens = list(make_decoding(file, weights | {"joint.joint_net.2.bias": bias}).feed(rows))
    assert [token.start for token in tokens] == np.repeat(np.arange(5), file.max_symbols).tolist()


def test_long_sounds_are_encoded_in_windows(path: Path, rows: Floats) -> None:
    sound, steps = Sound(np.tile(parakeet_checkpoints.sound(), 6)), []
    file = open_recognition_file(path)
    whole = np.concatenate(list(encode(file, sound, 56.0, Options(threads=2))))
    parts = list(encode(file, sound, 5.0, Options(threads=2)))
    assert [len(part) for part in parts] == [62, 62, 62, 62, 62, 68]
    assert np.concatenate(parts).shape == whole.shape
    assert np.abs(parts[0] - whole[:62]).max() < np.abs(whole).max() / 2  # they see less of the sound
    with SpeechRecognizer(path, Options(threads=2)) as model:
        list(model.transcribe(sound, chunk_seconds=5.0, on_progress=lambda *step: steps.append(step)))
    assert [round(done / 4.96) for done, _ in steps] == [0, 1, 2, 3, 4, 5, 6]
    assert {total for _, total in steps} == {len(sound.samples) / SAMPLE_RATE}


@pytest.mark.parametrize(("n_frames", "count"), [(1, 1), (1280, 1), (1281, 2), (1600, 2), (1840, 2), (8000, 10)])
def test_windows_keep_each_row_once(n_frames: int, count: int) -> None:
    found = windows(n_frames, 100, 30)
    assert [window.start for window in found] == [0, *(window.end for window in found[:-1])]
    assert found[-1].end == -(-n_frames // 8)
    for window in found:
        before, after = window.start - window.first // 8, -(-window.last // 8) - window.end
        assert window.first % 8 == 0
        assert before == min(30, window.start)
        assert after == min(30, found[-1].end - window.end)
    assert len(found) == count

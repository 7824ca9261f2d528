"""The command `transcribe` with a speech recognition model."""

import json
from collections.abc import Callable
from pathlib import Path

import parakeet_checkpoints
import parakeet_files
import pytest
from hearing_model import wav

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(parakeet_files.write_model("tdt", tmp_path_factory.mktemp("parakeet") / "parakeet.gguf"))


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    path = tmp_path / "talk.wav"
    path.write_bytes(wav(parakeet_checkpoints.sound()))
    return path


def test_a_converted_checkpoint_transcribes_with_the_times_of_words(run: Run, tmp_path: Path, sound: Path) -> None:
    checkpoint, model = parakeet_checkpoints.write_checkpoint("tdt", tmp_path / "checkpoint"), tmp_path / "model.gguf"
    assert run("quantize", str(checkpoint), str(model), "Q8_0")[0] == 0
    code, out, _ = run("transcribe", str(model), str(sound), "-t", "2", "-osrt", "-ovtt", "-oj")
    assert code == 0
    found = json.loads(sound.with_name("talk.wav.json").read_text())["transcription"]
    assert out == "".join(f"{segment['text']}\n" for segment in found) != ""
    for segment in found:
        assert " ".join(word["text"] for word in segment["words"]) == segment["text"]
        assert segment["offsets"]["from"] == segment["words"][0]["offsets"]["from"]
        assert segment["offsets"]["to"] == segment["words"][-1]["offsets"]["to"]
        assert all(word["offsets"]["from"] <= word["offsets"]["to"] for word in segment["words"])
    assert len({word["offsets"]["from"] for segment in found for word in segment["words"]}) > 3
    for kind, sign in (("srt", ","), ("vtt", ".")):
        times = sound.with_name(f"talk.wav.{kind}").read_text().count(f"{sign}000 --> ")
        assert times <= len(found)
        assert found[0]["text"] in sound.with_name(f"talk.wav.{kind}").read_text()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("-l", "de"), "--language: a speech recognition model cannot be told the language"),
        (("--temp", "0.5"), "--temp: a speech recognition model does not have this option"),
        (("--mmproj", "MODEL"), "--mmproj: a speech recognition model does not have this option"),
    ],
)
def test_options_of_language_models_are_refused(
    run: Run, model: str, sound: Path, arguments: tuple[str, ...], problem: str
) -> None:
    code, out, err = run("transcribe", model, str(sound), *(model if each == "MODEL" else each for each in arguments))
    assert (code, out) == (2, "")
    assert f"error: {problem}" in err
    assert len(err.splitlines()) == 1


def test_damaged_sounds_do_not_stop_the_others(run: Run, model: str, sound: Path) -> None:
    damaged = sound.with_name("damaged.wav")
    damaged.write_bytes(b"RIFF\x10\0\0\0WAVE")
    code, out, err = run("transcribe", model, str(damaged), str(sound), "-t", "2", "--chunk", "5")
    assert (code, len(out.splitlines())) == (1, 1)
    assert "damaged.wav: the sound is damaged" in err


@pytest.mark.parametrize("command", ["chat", "generate"])
def test_other_commands_name_this_one(run: Run, model: str, command: str) -> None:
    code, out, err = run(command, model, "-p", "Hello")
    assert (code, out) == (3, "")
    assert "a speech recognition model, which only `localinfer transcribe` runs" in err


def test_inspect_shows_the_head(run: Run, model: str) -> None:
    code, out, _ = run("inspect", model)
    assert code == 0
    assert "TDT" in out
    assert "encoder.layers.1.self_attn.linear_pos.weight" in out
    code, out, _ = run("inspect", model, "--json")
    found = json.loads(out)
    assert found["speech_recognition"]["durations of tokens in rows"] == "0, 1, 2, 3, 4"
    assert found["memory"]["weights"] > 0

"""The command `transcribe`, with a tiny model that hears."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import malicious_files
import pytest
from hearing_model import speech, wav, write_hearing_model
from tiny import tiny_llama

import localinfer
from localinfer import Model
from localinfer.multimodal.media import Sound
from localinfer.transcription.transcriber import transcribe

Run = Callable[..., tuple[int, str, str]]
OPTIONS = ("-t", "1", "-n", "4", "--no-prefix-store")


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hearing_model(tmp_path_factory.mktemp("hearing"))


@pytest.fixture(scope="module")
def model(model_path: Path) -> Iterator[Model]:
    with localinfer.load(model_path, threads=1, prefix_store=False, temp=0.0) as loaded:
        yield loaded


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    path = tmp_path / "talk.wav"
    path.write_bytes(wav(speech(8.0, pauses=(4.0,))))
    return path


def test_each_chunk_is_a_segment_and_silence_has_none(model: Model) -> None:
    samples, steps = speech(12.0, pauses=(4.0,)), []
    samples[int(4.2 * 16_000) :] = 0
    found = list(
        transcribe(model, Sound(samples), chunk_seconds=5, max_tokens=4, on_progress=lambda *step: steps.append(step))
    )
    assert [(round(each.start), round(each.end)) for each in found] == [(0, 5)]
    assert not found[0].is_complete
    assert steps[0] == (0.0, 12.0)
    assert steps[-1] == (12.0, 12.0)


def test_the_text_alone_is_on_stdout_and_files_are_beside_the_sound(run: Run, model_path: Path, sound: Path) -> None:
    files = ("-otxt", "-osrt", "-ovtt", "-oj")
    code, out, err = run("transcribe", str(model_path), str(sound), *OPTIONS, "--chunk", "5", *files)
    assert code == 0
    assert len(out.splitlines()) == 2
    assert "talk.wav: the text from 00:00:00.000 on may be cut" in err
    written = {path.suffix: path.read_text() for path in sound.parent.iterdir() if path != sound}
    assert written.keys() == {".txt", ".srt", ".vtt", ".json"}
    assert written[".txt"] == out
    assert "1\n00:00:00,000 --> 00:00:0" in written[".srt"]
    segments = json.loads(written[".json"])["transcription"]
    assert segments[0]["offsets"]["to"] == segments[1]["offsets"]["from"]
    assert segments[1]["offsets"]["to"] == 8000


def test_output_files_have_other_names(run: Run, model_path: Path, sound: Path) -> None:
    other = sound.with_name("other.wav")
    other.write_bytes(wav(speech(1.0)))
    name = sound.with_name("first.part")
    arguments = ("transcribe", str(model_path), str(sound), str(other), *OPTIONS, "-otxt", "-osrt", "-of", str(name))
    code, out, _ = run(*arguments)
    assert code == 0
    written = {path.name for path in sound.parent.iterdir()} - {sound.name, other.name}
    assert written == {"first.part.txt", "first.part.srt", "other.wav.txt", "other.wav.srt"}
    assert out == sound.with_name("first.part.txt").read_text() + sound.with_name("other.wav.txt").read_text()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("-of", "x"), "--output-file: nothing is written without -otxt, -osrt, -ovtt or -oj"),
        (("-otxt", "-of", "x", "-of", "y"), "--output-file: there are 2 names for 1 sounds"),
        (("-otxt", "-of", "none/x"), "--output-txt: none/x.txt: No such file or directory"),
    ],
)
def test_invalid_output_files(
    run: Run, model_path: Path, sound: Path, arguments: tuple[str, ...], problem: str
) -> None:
    code, out, err = run("transcribe", str(model_path), str(sound), *arguments)
    assert (code, out) == (2, "")
    assert f"error: {problem}" in err


def test_the_other_sounds_are_transcribed_if_one_is_damaged(run: Run, model_path: Path, sound: Path) -> None:
    damaged = sound.with_name("damaged.wav")
    damaged.write_bytes(b"RIFF\x10\0\0\0WAVE")
    code, out, err = run("transcribe", str(model_path), str(damaged), str(sound), "-otxt", *OPTIONS)
    assert code == 1
    assert "error: " in err
    assert "damaged.wav: the sound is damaged" in err
    assert sound.with_name("talk.wav.txt").read_text() == out != ""
    assert not damaged.with_name("damaged.wav.txt").exists()


def test_a_missing_file_or_an_unknown_language_stops_everything(run: Run, model_path: Path, sound: Path) -> None:
    code, out, err = run("transcribe", str(model_path), str(sound), "none.wav", "-otxt")
    assert (code, out) == (2, "")
    assert "error: none.wav: no such file" in err
    code, out, err = run("transcribe", str(model_path), str(sound), "-l", "tlh")
    assert (code, out) == (2, "")
    assert "--language: 'tlh' is not known" in err
    assert list(sound.parent.iterdir()) == [sound]


def test_models_that_read_no_sounds_are_refused(run: Run, tmp_path: Path, sound: Path) -> None:
    deaf = tiny_llama(tmp_path / "deaf.gguf")
    code, out, err = run("transcribe", str(deaf), str(sound))
    assert (code, out) == (3, "")
    assert "deaf.gguf reads text only: there is no projector (mmproj) beside it" in err


def test_an_architecture_that_is_no_string_is_an_error(run: Run, tmp_path: Path, sound: Path) -> None:
    keys = malicious_files.kv("general.architecture", 9, malicious_files.array(4, 2, bytes(8)))
    path = tmp_path / "array.gguf"
    path.write_bytes(malicious_files.container(keys))
    code, out, err = run("transcribe", str(path), str(sound))
    assert (code, out) == (1, "")
    assert err.startswith("error: ")
    assert "array.gguf: general.architecture: expected a string, got an array of numbers" in err

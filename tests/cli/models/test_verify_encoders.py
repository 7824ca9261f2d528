"""`localinfer verify` with projectors and speech recognition models."""

import json
from collections.abc import Callable
from pathlib import Path

import hearing_model
import parakeet_files
import projectors
import pytest
import seeing_model
import sound_projectors
from flipped_bits import flip_a_bit_of_an_encoder

Run = Callable[..., tuple[int, str, str]]
SHORT = "-t", "1", "-n", "8"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return seeing_model.write_seeing_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def projector(model: Path) -> Path:
    return model.parent / "mmproj-gemma3.gguf"


def test_a_model_and_its_projector_are_verified(run: Run, model: Path, projector: Path) -> None:
    code, out, err = run("verify", model, "--mmproj", projector, *SHORT, "--all")
    assert code == 0
    assert "all within what is allowed" in err
    assert " blk.1.attn_q " in out
    assert " v.blk.1.attn_q " in out
    code, out, err = run("verify", model, "--mmproj", projector, *SHORT, "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert found["batches"] == [5, 1, 2]
    assert found["inputs"] == ["image of 224 x 168 pixels, overview: 8 x 8 patches"]
    assert {"blk.0.attn_q", "v.blk.0.attn_q", "v.patch_embd", "v.average"} <= {each["name"] for each in found["checks"]}


def test_a_projector_alone_is_verified_with_an_image(run: Run, projector: Path, tmp_path: Path) -> None:
    image = tmp_path / "image.png"
    image.write_bytes(seeing_model.picture(size=(40, 30)))
    code, out, _ = run("verify", projector, "-t", "1", "--image", image, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["inputs"] == ["image of 40 x 30 pixels, overview: 8 x 8 patches"]
    assert found["batches"] == []
    made = json.loads(run("verify", projector, "-t", "1", "--json")[1])
    assert [each["name"] for each in made["checks"]] == [each["name"] for each in found["checks"]]
    assert made["checks"] != found["checks"]


def test_a_sound_and_a_speech_recognition_model(run: Run, tmp_path: Path) -> None:
    sound = tmp_path / "sound.wav"
    sound.write_bytes(hearing_model.wav(hearing_model.speech(1.5)))
    code, out, _ = run("verify", sound_projectors.write("ultravox", tmp_path), "-t", "1", "--audio", sound)
    assert code == 0
    assert ["spectrogram", "1", "spectrogram"] in [line.split()[:3] for line in out.splitlines()]
    model = parakeet_files.write_model("tdt", tmp_path / "parakeet.gguf")
    code, out, _ = run("verify", model, "-t", "1", "--audio", sound, "--json")
    assert code == 0
    assert json.loads(out)["inputs"] == ["sound of 1.5 s: 150 frames"]


def test_the_file_with_the_wrong_op_is_named(
    run: Run, model: Path, projector: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip_a_bit_of_an_encoder(monkeypatch, 0)
    code, out, err = run("verify", model, "--mmproj", projector, *SHORT)
    assert code == 1
    assert err.startswith(f"error: {projector}: v.patch_embd (product): the error is ")
    assert err.count("\n") == 1
    assert "1 wrong" in out


def written(kind: str, folder: Path) -> Path:
    """Write a file of a kind, and return its path."""
    path = folder / kind
    contents = {"image": seeing_model.picture(), "sound": hearing_model.wav(hearing_model.speech(0.5)), "text": b"text"}
    path.write_bytes(contents[kind])
    return path


@pytest.mark.parametrize(("arguments", "code", "message"), [
    (["MODEL", "--mmproj", "OTHER"], 2, "pixtral belongs to llama or mistral3 or mistral4 models, not to gemma3"),
    (["MODEL", "--mmproj", "MODEL"], 2, "general.architecture: is 'gemma3'; the file of a projector has 'clip'"),
    (["MODEL", "--mmproj", "nothing.gguf"], 3, "nothing.gguf"),
    (["MODEL", "--image", "image"], 3, "image: MODEL reads text only; its projector (--mmproj) encodes"),
    (["MODEL", "--mmproj", "PROJECTOR", "--audio", "sound"], 3, "gemma3 does not encode sounds"),
    (["PROJECTOR", "--image", "text"], 2, "this is a file of an unknown type, not an image"),
    (["PROJECTOR", "--image", "sound"], 2, "this is a WAV sound, not an image"),
    (["PROJECTOR", "--image", "missing.png"], 2, "--image: missing.png: No such file or directory"),
    (["PROJECTOR", "-p", "Hello"], 2, "prompt: PROJECTOR has no language model"),
    (["PROJECTOR", "--mmproj", "PROJECTOR"], 2, "mmproj: PROJECTOR has no language model"),
    (["PROJECTOR", "--lora", "adapter.gguf"], 2, "lora: PROJECTOR has no language model"),
    (["MODEL", "--mmproj", "PROJECTOR", "--against", "."], 2, "--against: compares language models only"),
])  # fmt: skip
def test_bad_input_is_one_line(
    run: Run, model: Path, projector: Path, tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    files = {"MODEL": model, "PROJECTOR": projector, "OTHER": tmp_path / "mmproj-pixtral.gguf"}
    projectors.write("pixtral", tmp_path)
    files |= {kind: written(kind, tmp_path) for kind in ("image", "sound", "text")}
    actual, out, err = run("verify", *(files.get(each, each) for each in arguments))
    assert actual == code
    assert out == ""
    for name in ("MODEL", "PROJECTOR"):
        message = message.replace(name, str(files[name]))
    assert message in err
    assert err.count("\n") == 1

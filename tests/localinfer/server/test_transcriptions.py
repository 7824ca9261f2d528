"""`/v1/audio/transcriptions`, with OpenAI's client and a tiny model that hears."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hearing_model import speech, wav, write_hearing_model
from server_process import ServerProcess, wait_until

import localinfer
from localinfer.multimodal.media import Sound
from localinfer.transcription.transcriber import transcribe

PATH = "/v1/audio/transcriptions"
FILE_PART = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
SOUND = speech(34.0, pauses=(27.0,))
N_TOKENS = 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hearing_model(tmp_path_factory.mktemp("hearing"))


@pytest.fixture(scope="module")
def wanted(model: Path) -> list[str]:
    """What `localinfer transcribe` writes."""
    with localinfer.load(model, threads=1, temp=0.0, prefix_store=False) as loaded:
        return [segment.text for segment in transcribe(loaded, Sound(SOUND), max_tokens=N_TOKENS)]


@pytest.fixture(scope="module")
def hearing(model: Path, wanted: list[str]) -> Iterator[ServerProcess]:
    assert len(wanted) == 2  # the kernels are compiled
    with ServerProcess(model, "-n", N_TOKENS, "-t", "1", "--temp", "2", "--parallel", "2") as served:
        yield served


def client_of(server: ServerProcess) -> Any:
    openai = pytest.importorskip("openai", reason="there is no package openai")
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0).audio.transcriptions


def fields(**changes: Any) -> dict[str, Any]:
    return {"file": ("größe.wav", wav(SOUND)), "model": "whisper-1"} | changes


def joined(texts: list[str]) -> str:
    return " ".join(" ".join(text.split()) for text in texts)


def test_the_text_is_that_of_the_command(hearing: ServerProcess, wanted: list[str]) -> None:
    client = client_of(hearing)
    found = client.create(**fields())
    assert found.text == joined(wanted)
    assert (found.usage.type, found.usage.seconds) == ("duration", 34)
    assert client.create(**fields(response_format="text")) == f"{joined(wanted)}\n"
    german = client.create(**fields(language="de", response_format="verbose_json"))
    assert (german.language, german.duration) == ("german", 34.0)


def test_times(hearing: ServerProcess, wanted: list[str]) -> None:
    client = client_of(hearing)
    found = client.create(**fields(response_format="verbose_json", timestamp_granularities=["segment"]))
    assert [segment.text for segment in found.segments] == wanted
    assert (found.segments[0].start, found.segments[1].end, found.task) == (0.0, 34.0, "transcribe")
    assert found.segments[0].end == found.segments[1].start == pytest.approx(27, abs=0.3)
    assert client.create(**fields(response_format="srt")).count(" --> 00:00:34,000\n") == 1
    assert client.create(**fields(response_format="vtt")).startswith("WEBVTT\n\n00:00:00.000 --> 00:00:2")


def test_stream(hearing: ServerProcess, wanted: list[str]) -> None:
    *deltas, done = client_of(hearing).create(**fields(stream=True))
    assert [event.type for event in deltas] == ["transcript.text.delta"] * 2
    assert "".join(event.delta for event in deltas) == done.text == joined(wanted)
    assert done.type == "transcript.text.done"


def test_temperature(hearing: ServerProcess, wanted: list[str]) -> None:
    client = client_of(hearing)
    assert client.create(**fields(temperature=0.0)).text == joined(wanted)
    assert client.create(**fields(temperature=2.0)).text != joined(wanted)


@pytest.mark.parametrize(("changes", "field", "problem"), [
    ({"file": ("a.wav", b"no sound")}, "file", "not a sound; "),
    ({"file": ("a.wav", b"RIFF\x10\0\0\0WAVE")}, "file", "the sound is damaged"),
    ({"file": ("a.wav", b"")}, "file", "must be a sound"),
    ({"response_format": "diarized_json"}, "response_format", "must be one of json, text, srt, verbose_json, vtt"),
    ({"language": "tlh"}, "language", "'tlh' is not known"),
    ({"temperature": -1}, "temperature", "must be"),
    ({"extra_body": {"temperature": "warm"}}, "temperature", "must be a number"),
    ({"timestamp_granularities": ["segment"]}, "timestamp_granularities", "is for the response_format verbose_json"),
    ({"timestamp_granularities": ["letter"], "response_format": "verbose_json"}, "timestamp_granularities", "must be"),
    ({"timestamp_granularities": ["word"], "response_format": "verbose_json"}, "timestamp_granularities", "no times"),
    ({"stream": True, "response_format": "srt"}, "stream", "is for the response_format json or text"),
    ({"extra_body": {"stream": "maybe"}}, "stream", "must be true or false"),
])  # fmt: skip
def test_invalid_fields(hearing: ServerProcess, changes: dict[str, Any], field: str, problem: str) -> None:
    openai = pytest.importorskip("openai", reason="there is no package openai")
    with pytest.raises(openai.BadRequestError) as caught:
        client_of(hearing).create(**fields(**changes))
    assert caught.value.body["param"] == field
    assert problem in caught.value.body["message"]


def test_requests_that_are_no_form_or_too_large(hearing: ServerProcess) -> None:
    refused = hearing.post(PATH, {"file": "a"}, content_type="application/json")
    assert (refused.status, refused.body["error"]["type"]) == (400, "invalid_request_error")
    assert "multipart/form-data" in refused.body["error"]["message"]
    form = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\na\r\n--x--\r\n'
    refused = hearing.post(PATH, form, content_type="multipart/form-data; boundary=x")
    assert (refused.status, refused.body["error"]["param"]) == (400, "file")
    assert hearing.post("/audio/transcriptions", bytes(33 << 20)).status == 413


def test_models_that_hear_nothing(server: ServerProcess) -> None:
    openai = pytest.importorskip("openai", reason="there is no package openai")
    with pytest.raises(openai.BadRequestError, match=r"tiny\.gguf reads text only"):
        client_of(server).create(**fields())


def test_requests_that_end_early(model: Path) -> None:
    """The one chunk of the sound has more tokens than the model writes until the timeout."""
    openai = pytest.importorskip("openai", reason="there is no package openai")
    options = ("-t", "1", "--timeout", "4", "--parallel", "1", "-c", "131072", "-n", "131000", "--ignore-eos")
    with ServerProcess(model, *options) as server:
        connection = server.connection()
        content = FILE_PART + wav(speech(6.0)) + b"\r\n--x--\r\n"
        connection.request("POST", PATH, content, {"content-type": "multipart/form-data; boundary=x"})
        assert wait_until(lambda: server.get("/slots").body[0].get("n_past", 0) > 100, 3)
        connection.close()
        assert wait_until(lambda: not server.get("/slots").body[0]["is_processing"], 1)
        start = time.monotonic()
        with pytest.raises(openai.InternalServerError) as caught:
            client_of(server).create(**fields(file=("talk.wav", wav(speech(6.0)))))
        assert time.monotonic() - start < 6
    assert (caught.value.status_code, caught.value.code) == (503, "timeout")

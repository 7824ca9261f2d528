"""Videos in prompts of the Python API, with a tiny model that watches."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_videos import CODECS, drawn_frame, make_video, turned
from seeing_model import picture, write_seeing_model
from watching_model import N_TOKENS, write_watching_model

import localinfer
from localinfer import Model, UsageError
from localinfer.errors import LocalInferError, PromptTooLongError, UnsupportedError
from localinfer.multimodal import reading
from localinfer.multimodal.content_type import video_container
from localinfer.multimodal.media import Video
from localinfer.multimodal.videos import video_decoding, video_process
from localinfer.multimodal.videos.video_info import VideoInfo

QUESTION = {"type": "text", "text": "the"}
GREEDY: dict[str, Any] = {"temp": 0.0, "max_tokens": 4, "ignore_eos": True}
VIDEO = make_video()  # 3 seconds
SECONDS = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("watching")
    write_watching_model(folder)
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[Model]:
    with localinfer.load(folder / "qwen2.gguf", threads=1, prefix_store=False, ctx_size=512) as loaded:
        yield loaded


def asked(*parts: object) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [*parts]}]


def ids_of(model: Model, part: object, **keywords: Any) -> list[int]:
    return model.render(asked(part, QUESTION), **keywords).ids


def decoded(content: bytes, *numbers: int) -> Video:
    return reading.read_video(content, "clip", lambda _: numbers, lambda frame, _: frame)


# --- messages and prompts ---


def test_every_form_of_a_video_is_the_same(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(VIDEO)
    encoded = base64.b64encode(VIDEO).decode()
    forms: list[dict[str, object]] = [
        {"type": "video", "video": str(path)}, {"type": "video", "video": path}, {"type": "video", "video": VIDEO},
        {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{encoded}"}},
        {"type": "video_url", "video_url": f"data:video/mp4;base64,{encoded}"},
        {"type": "input_video", "input_video": {"url": path.as_uri()}},
        {"type": "input_video", "input_video": {"data": encoded}},
    ]  # fmt: skip
    ids = [ids_of(model, form) for form in forms]
    assert ids == [ids[0]] * len(forms)
    assert sum(id < 0 for id in ids[0]) == SECONDS * N_TOKENS
    assert model.media_kinds == {"image", "video"}


def test_text_around_frames(model: Model) -> None:
    ids = model.tokenize("the", media=[VIDEO])
    frames = [f"{start}Frame{number}: <img>" for number, start in enumerate(("", "\n", "\n"), 1)]
    expected: list[int] = []
    rows = iter(id for id in ids if id < 0)
    for text in frames:
        expected += model.tokenize(text, add_special=False, parse_special=True)
        expected += [next(rows) for _ in range(N_TOKENS)]
        expected += model.tokenize("</img>", add_special=False, parse_special=True)
    assert ids == [*expected, *model.tokenize("the", add_special=False)]


def test_a_video_is_encoded_once(folder: Path) -> None:
    reported: list[tuple[str, int, int]] = []

    def progress(*what: Any) -> None:
        reported.append(what)

    with localinfer.load(folder / "qwen2.gguf", threads=1, prefix_store=False, ctx_size=512, progress=progress) as own:
        messages = asked({"type": "video", "video": VIDEO}, QUESTION)
        first = own.chat(messages, **GREEDY)
        frames = [each for each in reported if each[0] in ("frames", "video")]
        assert frames == [(stage, done, SECONDS) for stage in ("frames", "video") for done in range(1, SECONDS + 1)]
        reported.clear()
        second = own.chat([*messages, first.as_message(), {"role": "user", "content": "the"}], **GREEDY)
        assert not [each for each in reported if each[0] in ("frames", "video")]
        assert second.stats.reused_tokens >= first.stats.prompt_tokens


@pytest.mark.parametrize("stage", ["frames", "video"])
def test_reading_a_video_can_be_stopped_at_each_frame(folder: Path, stage: str) -> None:
    def progress(at: str, done: int, _: int) -> None:
        if at == stage and done == 2 and not stopped:
            stopped.append(at)
            raise KeyboardInterrupt

    stopped: list[str] = []
    with localinfer.load(folder / "qwen2.gguf", threads=1, prefix_store=False, ctx_size=512, progress=progress) as own:
        with pytest.raises(KeyboardInterrupt):
            own.tokenize("", media=[VIDEO])
        assert len(own.tokenize("", add_special=False, media=[VIDEO])) == own.media_info(VIDEO).n_tokens


def test_size_of_a_video(model: Model) -> None:
    info = model.media_info(VIDEO)
    assert (info.kind, info.n_frames, info.width, info.height, info.seconds) == ("video", SECONDS, 24, 24, 3.0)
    assert info.n_tokens == len(model.tokenize("", add_special=False, media=[VIDEO]))
    assert str(info) == f"3.0 s, 3 frames of 24 x 24, {info.n_tokens} tokens"


def test_a_gif_is_a_video_if_it_is_called_so(model: Model) -> None:
    gif = make_video(16, 8, (64, 96), "gif", "gif", "rgb8")
    assert model.media_info(gif).kind == "image"
    assert model.media_info({"type": "video", "video": gif}).kind == "video"


# --- frames ---


def test_rate_and_number_of_frames(folder: Path) -> None:
    long = make_video(300, 10, (32, 32))
    counts = {}
    for options in ({}, {"video_fps": 0.5}, {"video_max_frames": 7}, {"video_fps": 4.0, "video_max_frames": 9}):
        with localinfer.load(folder / "qwen2.gguf", threads=1, prefix_store=False, ctx_size=2048, **options) as own:
            counts[tuple(options)] = own.media_info(long).n_frames
    assert counts == {(): 30, ("video_fps",): 15, ("video_max_frames",): 7, ("video_fps", "video_max_frames"): 9}


def test_a_video_takes_half_of_the_context(folder: Path) -> None:
    long = make_video(300, 10, (32, 32))
    with localinfer.load(folder / "qwen2.gguf", threads=1, prefix_store=False, ctx_size=256) as own:
        info = own.media_info(long)
        assert 128 - N_TOKENS < info.n_frames * N_TOKENS <= 128
    chosen = {"ctx_size": 256, "video_max_frames": 30}
    with localinfer.load(folder / "qwen2.gguf", threads=1, prefix_store=False, **chosen) as own:
        assert own.media_info(long).n_frames == 30
        with pytest.raises(PromptTooLongError, match="fewer frames of videos"):
            own.chat(asked({"type": "video", "video": long}, QUESTION))


# --- errors ---


def test_models_that_do_not_watch(tmp_path: Path) -> None:
    with localinfer.load(write_seeing_model(tmp_path), threads=1, prefix_store=False) as seeing:
        with pytest.raises(UnsupportedError, match=r"\]: the model reads images, and was not trained for videos$"):
            seeing.chat(asked({"type": "video", "video": VIDEO}, QUESTION))
        with pytest.raises(UnsupportedError, match=r"source: the model reads images, and was not trained for videos"):
            seeing.media_info(VIDEO)


def test_the_extra_is_missing(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video_process, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"^source: videos need the extra `video`: pip install 'localinfer\[video\]'$"):
        model.media_info(make_video(2))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (picture(), "this is a PNG image, not a video; MP4, MOV"),
        (b"", "this is an empty file, not a video"),
        (VIDEO[:200], "the video is damaged: Invalid data"),
        (VIDEO[:40] + bytes(len(VIDEO) - 40), "the video is damaged: "),
        (make_video(2, 8, (1, 256 * 2), "matroska", "ffv1", "yuv444p"), "512 x 1 pixels is too large"),
        (make_video(3, 8, (16, 16)).replace(b"avc1", b"zzzz"), "the video "),
    ],
)
def test_damaged_videos(model: Model, content: bytes, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        model.media_info({"type": "video", "video": content}, name="clip")
    assert str(caught.value).startswith("clip: ")
    assert problem in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_crash_of_the_decoder_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video_process, "CODE", "import os; os.abort()")
    with pytest.raises(LocalInferError, match=r"^clip: the video is damaged: its decoder fails$"):
        decoded(VIDEO, 0)


def test_playlists_are_no_videos() -> None:
    for text in (b"#EXTM3U\nfile:///etc/passwd\n", b"ffconcat version 1.0\nfile /etc/passwd\n"):
        assert not video_container(text)
        with pytest.raises(LocalInferError, match="the video is damaged"):
            video_decoding.VideoReader(text, "mov", "clip")


# --- decoding ---


@pytest.mark.parametrize(("container", "codec", "pixel_format"), CODECS)
def test_every_container(container: str, codec: str, pixel_format: str) -> None:
    content = make_video(24, 8, (64, 96), container, codec, pixel_format)
    infos: list[VideoInfo] = []
    numbers = [0, 7, 7, 15, 23]
    video = reading.read_video(content, "clip", lambda info: infos.append(info) or numbers, lambda frame, _: frame)
    assert infos[0][:1] + infos[0][2:] == (24, 64, 96)
    assert infos[0].fps == pytest.approx(8, rel=0.05)
    assert video.frames.shape == (5, 64, 96, 3)
    assert video.times == tuple(number / infos[0].fps for number in numbers)
    assert video.duration == pytest.approx(3, rel=0.05)
    for number, frame in zip(numbers, video.frames, strict=True):
        assert np.abs(frame.astype(int) - drawn_frame(number, 64, 96)).mean() < 10
    assert np.array_equal(video.frames[1], video.frames[2])


@pytest.mark.parametrize("degrees", [90, 180, 270])
def test_frames_are_turned_upright(degrees: int) -> None:
    upright, video = decoded(VIDEO, 0, 20), decoded(turned(VIDEO, degrees), 0, 20)
    for before, after in zip(upright.frames, video.frames, strict=True):
        assert np.array_equal(after, np.rot90(before, -degrees // 90))


def test_digest_of_a_video() -> None:
    video = decoded(VIDEO, 0, 8)
    assert video.digest == decoded(VIDEO, 0, 8).digest
    assert len({video.digest, decoded(VIDEO, 0, 9).digest, Video(video.frames, (0.0, 2.0), 3.0).digest}) == 3

"""Images in requests: every API's own form, what requests may name, and errors that name the field."""

import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_videos import make_video
from projector_files import write_projector_header
from seeing_model import N_TOKENS, picture, write_seeing_model
from server_process import ServerProcess
from tiny import tiny_llama
from watching_model import N_TOKENS as N_TOKENS_OF_A_FRAME
from watching_model import write_watching_model

import localinfer
from cli.server.model_list import ModelList
from cli.server.presets import NO_PRESETS
from localinfer.options import Layer
from localinfer.server.models.model_cache import ModelCache
from localinfer.server.ollama.models import model_details
from localinfer.server.openai.models import model_object
from localinfer.server.settings import Settings

BASE64 = base64.b64encode(picture()).decode()
OTHER = base64.b64encode(picture(1)).decode()
URL = f"data:image/png;base64,{BASE64}"
CHAT = "/v1/chat/completions"
FIXED: dict[str, Any] = {"max_tokens": 4, "temperature": 0, "seed": 1}


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("media")
    (folder / "cat.png").write_bytes(picture())
    return folder


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory, media: Path) -> Iterator[ServerProcess]:
    model = write_seeing_model(tmp_path_factory.mktemp("seeing"))
    with localinfer.load(model, parallel=2) as loaded:  # compiles the kernels, which may take longer than a request
        loaded.chat([user(image(), text())], **FIXED)
    with ServerProcess(model, "--parallel", "2", "--media-path", str(media)) as served:
        yield served


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": [*parts]}


def image(url: str = URL) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def text(content: str = "the") -> dict[str, Any]:
    return {"type": "text", "text": content}


def n_prompt(server: ServerProcess, *parts: dict[str, Any]) -> int:
    answer = server.post(CHAT, FIXED | {"messages": [user(*parts)]})
    assert answer.status == 200, answer.body
    return int(answer.body["usage"]["prompt_tokens"])


# --- what the model reads ---


def test_what_the_server_says(seeing: ServerProcess, server: ServerProcess) -> None:
    assert seeing.get("/props").body["modalities"] == {"vision": True, "audio": False, "video": False}
    assert seeing.get("/props").body["media_marker"] == "<__media__>"
    [entry] = seeing.get("/v1/models").body["data"]
    assert entry["architecture"] == {"input_modalities": ["text", "image"], "output_modalities": ["text"]}
    assert entry["capabilities"] == ["completion", "multimodal"]
    assert "vision" in seeing.post("/api/show", {"model": entry["id"]}).body["capabilities"]
    assert server.get("/v1/models").body["data"][0]["capabilities"] == ["completion"]
    assert "vision" not in server.post("/api/show", {"model": "tiny"}).body["capabilities"]


@pytest.mark.parametrize(("place", "is_used"), [("beside", True), ("beside", False), ("elsewhere", True)])
def test_what_the_options_of_the_server_say(tmp_path: Path, place: str, is_used: bool) -> None:
    """A model that is not loaded, with a projector beside it or elsewhere, or with --no-mmproj."""
    (tmp_path / "models").mkdir()
    tiny_llama(tmp_path / "models" / "tiny.gguf")
    projector = write_projector_header(tmp_path / ("models" if place == "beside" else "") / "mmproj.gguf")
    given: Layer = {} if is_used else {"mmproj_auto": False}
    if place == "elsewhere":
        given = {"mmproj": str(projector)}
    found = ModelList(
        sources=[], directories=[tmp_path / "models"], given=given, read_presets=lambda: NO_PRESETS
    ).catalog()
    cache = ModelCache(found, lambda _: pytest.fail("loads a model"))
    [served] = cache.served_models()
    dispatcher: Any = SimpleNamespace(model_cache=cache, settings=Settings())
    assert model_object(served, dispatcher)["capabilities"] == ["completion", *["multimodal"] * is_used]
    assert model_details(served, cache, verbose=False)["capabilities"] == ["completion", *["vision"] * is_used]
    loaded: Any = SimpleNamespace(
        media_kinds={"audio"}, file=SimpleNamespace(path=tmp_path / "models" / "tiny.gguf"), n_ctx=1, n_vocab=1
    )
    cache.add(served, loaded)
    assert model_object(served, dispatcher)["architecture"]["input_modalities"] == ["text", "audio"]
    assert model_details(served, cache, verbose=False)["capabilities"] == ["completion", "audio"]


# --- the forms of the APIs ---


def test_chat(seeing: ServerProcess) -> None:
    alone = n_prompt(seeing, text())
    assert n_prompt(seeing, image(), text()) > alone + N_TOKENS
    counted = seeing.post(f"{CHAT}/input_tokens", {"messages": [user(image(), text())]}).body["input_tokens"]
    assert counted == n_prompt(seeing, image(), text())
    templated = seeing.post("/apply-template", {"messages": [user(image(), text())]}).body["prompt"]
    assert templated.count("<__media__>the") == 1
    events = seeing.events(CHAT, FIXED | {"messages": [user(image(), text())], "stream": True})
    assert events[-1]["choices"][0]["finish_reason"] == "length"


def test_the_image_counts(seeing: ServerProcess) -> None:
    def logprob(url: str) -> float:
        fields = FIXED | {"messages": [user(image(url), text())], "logprobs": True}
        return float(seeing.post(CHAT, fields).body["choices"][0]["logprobs"]["content"][0]["logprob"])

    assert logprob(URL) == logprob(URL) != logprob(f"data:image/png;base64,{OTHER}")


def test_concurrent_requests_give_what_they_give_alone(seeing: ServerProcess) -> None:
    urls = [f"data:image/png;base64,{base64.b64encode(picture(seed)).decode()}" for seed in range(4)]

    def answer(url: str) -> object:
        fields = FIXED | {"messages": [user(image(url), text())], "logprobs": True, "cache_prompt": False}
        return seeing.post(CHAT, fields).body["choices"][0]["logprobs"]

    alone = [answer(url) for url in urls]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(answer, urls)) == alone


def test_second_question_about_an_image(seeing: ServerProcess) -> None:
    first = [user(image(), text("the"))]
    answer = seeing.post(CHAT, FIXED | {"messages": first}).body["choices"][0]["message"]
    usage = seeing.post(CHAT, FIXED | {"messages": [*first, answer, user(text("and"))]}).body["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > N_TOKENS


def test_responses(seeing: ServerProcess) -> None:
    parts = [{"type": "input_image", "image_url": URL}, {"type": "input_text", "text": "the"}]
    fields: dict[str, Any] = {"input": [{"role": "user", "content": parts}], "max_output_tokens": 4}
    answer = seeing.post("/v1/responses", fields)
    assert answer.body["usage"]["input_tokens"] == n_prompt(seeing, image(), text())
    parts[0]["image_url"] = "data:;base64,%"
    refused = seeing.post("/v1/responses", fields)
    assert (refused.status, refused.body["error"]["param"]) == (400, "input")
    assert refused.body["error"]["message"] == "input[0].content[0].image_url: is not valid base64"


def test_messages(seeing: ServerProcess) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": BASE64}
    blocks: list[dict[str, Any]] = [{"type": "image", "source": source}, text()]
    fields: dict[str, Any] = {"model": "x", "max_tokens": 4, "messages": [{"role": "user", "content": blocks}]}
    usage = seeing.post("/v1/messages", fields).body["usage"]
    wanted = n_prompt(seeing, image(), text())
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == wanted
    assert seeing.post("/v1/messages/count_tokens", fields).body == {"input_tokens": wanted}
    used = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": blocks}
    fields["messages"] += [{"role": "assistant", "content": [used]}, {"role": "user", "content": [result]}]
    assert seeing.post("/v1/messages/count_tokens", fields).body["input_tokens"] > wanted + N_TOKENS
    source["data"] = "aGk="
    refused = seeing.post("/v1/messages", fields)
    assert refused.status == 400
    assert refused.body["error"]["message"].startswith("messages[0].content[0].source.data")


def test_ollama(seeing: ServerProcess) -> None:
    options = {"num_predict": 4}
    fields: dict[str, Any] = {"messages": [{"role": "user", "content": "the", "images": [BASE64]}], "stream": False}
    wanted = n_prompt(seeing, image(), text())
    assert seeing.post("/api/chat", fields | {"options": options}).body["prompt_eval_count"] == wanted
    fields = {"prompt": "the", "images": [BASE64], "stream": False, "options": options}
    assert seeing.post("/api/generate", fields).body["prompt_eval_count"] == wanted
    raw = seeing.post("/api/generate", fields | {"raw": True}).body["prompt_eval_count"]
    assert N_TOKENS < raw < wanted
    for wrong, field in ([5], "must be a list"), (["%"], "is not valid base64"), (["aGk="], "images[0]"):
        refused = seeing.post("/api/generate", fields | {"images": wrong})
        assert refused.status == 400
        assert "images" in refused.body["error"]
        assert field in refused.body["error"]


def test_images_that_ollamas_api_cannot_place(seeing: ServerProcess) -> None:
    refused = seeing.post("/api/generate", {"prompt": "the", "suffix": "end", "images": [BASE64]})
    assert (refused.status, refused.body["error"]) == (
        400, "images: cannot be combined with suffix: a prompt with a gap is text only",
    )  # fmt: skip
    message = {"role": "user", "content": [{"type": "text", "text": "the"}], "images": [BASE64]}
    refused = seeing.post("/api/chat", {"messages": [message]})
    assert (refused.status, refused.body["error"]) == (
        400, "messages[0].content: must be a string in a message with images",
    )  # fmt: skip


def test_completion(seeing: ServerProcess) -> None:
    prompt = {"prompt_string": "the <__media__> and <__media__>", "multimodal_data": [BASE64, OTHER]}
    answer = seeing.post("/completion", {"prompt": prompt, "n_predict": 4}).body
    assert answer["tokens_evaluated"] > 2 * N_TOKENS
    assert len(seeing.post("/completion", {"prompt": [prompt, "the"], "n_predict": 4}).body) == 2
    for changes, problem in (
        ({"multimodal_data": [BASE64]}, "media: 1 for 2 markers <__media__> in the prompt"),
        ({"multimodal_data": ["%", OTHER]}, "prompt.multimodal_data[0]: is not valid base64"),
        ({"multimodal_data": [5]}, "prompt.multimodal_data: must be a list"),
    ):
        refused = seeing.post("/completion", {"prompt": prompt | changes, "n_predict": 4})
        assert refused.status == 400
        assert refused.body["error"]["message"].startswith(problem)
    assert seeing.post("/embedding", {"content": prompt}).status == 501


# --- what requests may name ---


def test_token_ids_of_images_are_refused(seeing: ServerProcess) -> None:
    """They would show what another client sent."""
    assert n_prompt(seeing, image(), text()) > N_TOKENS  # ids from -1 on exist
    ids = [1, *range(-1, -1 - N_TOKENS, -1), 2]
    for path, fields, field in (
        ("/v1/completions", {"prompt": ids}, "prompt"),
        ("/v1/completions", {"prompt": ["the", ids], "echo": True}, "prompt"),
        ("/completion", {"prompt": ids}, "prompt"),
        ("/completion", {"prompt": ["the", *ids]}, "prompt"),
        ("/infill", {"input_prefix": ids, "input_suffix": "a"}, "input_prefix"),
        ("/infill", {"input_prefix": "a", "input_suffix": ids}, "input_suffix"),
        ("/infill", {"input_prefix": "a", "input_suffix": "b", "prompt": ids}, "prompt"),
        ("/embedding", {"content": ids}, "content"),
        ("/v1/embeddings", {"input": ids}, "input"),
        ("/v1/embeddings", {"input": ["a", ids]}, "input"),
        ("/detokenize", {"tokens": ids}, "tokens"),
        ("/v1/completions", {"prompt": "a", "logit_bias": [[-1, 5]]}, "logit_bias"),
    ):
        refused = seeing.post(path, fields)
        assert (refused.status, refused.body["error"]["param"]) == (400, field), (path, refused.body)
        assert refused.body["error"]["message"].startswith(field)
    refused = seeing.post("/api/embed", {"input": ids})
    assert (refused.status, refused.body["error"].partition(":")[0]) == (400, "input")


def test_files_and_addresses(seeing: ServerProcess, media: Path, server: ServerProcess) -> None:
    assert n_prompt(seeing, image("file://cat.png"), text()) == n_prompt(seeing, image(), text())
    for part, problem in (
        (image("file:///etc/passwd"), "is not in the folder of media files"),
        (image("file://../cat.png"), "is not in the folder of media files"),
        (image("http://127.0.0.1:1/cat.png"), "addresses of the web are not fetched here"),
        ({"type": "image", "image": "/etc/passwd"}, "is not in the folder of media files"),
    ):
        refused = seeing.post(CHAT, {"messages": [user(text(), part)]})
        assert (refused.status, refused.body["error"]["param"]) == (400, "messages")
        assert refused.body["error"]["message"].startswith("messages[0].content[1].image")
        assert problem in refused.body["error"]["message"]
    for url in "file://cat.png", (media / "cat.png").as_uri():
        refused = server.post(CHAT, {"messages": [user(image(url))]})
        assert (refused.status, refused.body["error"]["message"]) == (
            400, "messages[0].content[0].image_url.url: files are not read here; send the content as a data: URL",
        )  # fmt: skip


# --- errors ---


def test_a_model_that_reads_text_only(server: ServerProcess) -> None:
    refused = server.post(CHAT, {"messages": [user(image())]})
    assert (refused.status, refused.body["error"]["param"]) == (400, "messages")
    assert refused.body["error"]["message"].startswith("messages[0].content[0]: tiny.gguf reads text only: ")
    assert server.post(CHAT, FIXED | {"messages": [user(text())]}).status == 200


@pytest.mark.parametrize(("part", "problem"), [
    (image("data:image/png;base64,aGk="), "messages[0].content[0]"),
    (image("data:image/png;base64,%"), "messages[0].content[0].image_url.url: is not valid base64"),
    (image("data:image/png,a"), "messages[0].content[0].image_url.url: must be base64"),
    (image("cat.png"), "messages[0].content[0].image_url.url: must be a data: URL"),
    ({"type": "image_url"}, "messages[0].content[0].image_url: must be a URL"),
    ({"type": "image", "ids": [1]}, "messages[0].content[0].image: must be a path"),
    ({"type": "input_audio", "input_audio": {"data": BASE64, "format": "wav"}}, "messages[0].content[0]: the model"),
    ({"type": "input_audio", "input_audio": {}}, "messages[0].content[0].input_audio.data: must be base64"),
    ({"type": "video_url"}, "messages[0].content[0].video_url: must be a URL, such as data:video"),
    ({"type": "video_url", "video_url": {"url": URL}}, "messages[0].content[0]: the model reads images, and was not"),
    ({"type": "input_video", "input_video": {"data": "%"}}, "messages[0].content[0].input_video.data: is not valid"),
    ({"type": "film"}, "messages[0].content[0].type: must be text, image, audio or video"),
])  # fmt: skip
def test_invalid_parts(seeing: ServerProcess, part: dict[str, Any], problem: str) -> None:
    refused = seeing.post(CHAT, {"messages": [user(part, text())]})
    assert (refused.status, refused.body["error"]["param"]) == (400, "messages")
    assert refused.body["error"]["message"].startswith(problem), refused.body


def test_videos_of_requests(tmp_path: Path) -> None:
    model = write_watching_model(tmp_path)
    with localinfer.load(model, parallel=2) as loaded:  # compiles the kernels
        loaded.chat([user({"type": "video", "video": make_video()}, text())], **FIXED)
    encoded = base64.b64encode(make_video()).decode()
    with ServerProcess(model, "--video-max-frames", "2") as watching:
        assert watching.get("/props").body["modalities"] == {"vision": True, "audio": False, "video": True}
        (entry,) = watching.get("/v1/models").body["data"]
        assert entry["architecture"]["input_modalities"] == ["text", "image", "video"]
        url = f"data:video/mp4;base64,{encoded}"
        parts = (
            {"type": "video_url", "video_url": {"url": url}}, {"type": "input_video", "input_video": {"url": url}},
            {"type": "input_video", "input_video": {"data": encoded}},
        )  # fmt: skip
        answers = [watching.post(CHAT, {"messages": [user(part, text())], **FIXED}).body for part in parts]
        assert [answer["choices"] for answer in answers] == [answers[0]["choices"]] * len(parts)
        assert answers[0]["usage"]["prompt_tokens"] > 2 * N_TOKENS_OF_A_FRAME
        assert answers[1]["usage"]["prompt_tokens_details"]["cached_tokens"] > 2 * N_TOKENS_OF_A_FRAME
        damaged = {"type": "input_video", "input_video": {"data": base64.b64encode(make_video()[:99]).decode()}}
        refused = watching.post(CHAT, {"messages": [user(damaged, text())]})
        assert refused.status == 400
        assert refused.body["error"]["message"].startswith("messages[0].content[0]: the video is damaged: ")


def test_more_images_than_the_context_holds(seeing: ServerProcess) -> None:
    refused = seeing.post(CHAT, {"messages": [user(*[image()] * 200)]})
    assert (refused.status, refused.body["error"]["code"]) == (400, "context_length_exceeded")
    assert json.dumps(refused.body).count("base64") == 0

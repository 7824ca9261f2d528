"""Images in prompts of the Python API, with a tiny model that sees."""

import base64
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import projectors
import pytest
from seeing_model import N_TOKENS, picture, write_seeing_model
from tiny import tiny_llama

import localinfer
from localinfer import Model, UsageError
from localinfer.errors import ModelNotFoundError, PromptTooLongError, UnsupportedError
from localinfer.multimodal.access import INLINE_ONLY, MediaAccess
from localinfer.multimodal.media import Image, Sound
from localinfer.multimodal.parts import decode
from localinfer.multimodal.reading import read_image
from localinfer.runtime.media import media_table

QUESTION = {"type": "text", "text": "the"}
GREEDY: dict[str, Any] = {"temp": 0.0, "max_tokens": 6, "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("seeing")


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[Model]:
    with localinfer.load(write_seeing_model(folder), threads=1, prefix_store=False) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def blind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    with localinfer.load(tiny_llama(tmp_path_factory.mktemp("blind") / "blind.gguf"), threads=1, ctx_size=64) as loaded:
        yield loaded


@pytest.fixture
def png(tmp_path: Path) -> Path:
    path = tmp_path / "cat.png"
    path.write_bytes(picture())
    return path


def asked(*parts: object) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [*parts]}]


def ids_of(model: Model, part: object, **keywords: Any) -> list[int]:
    return model.render(asked(part, QUESTION), **keywords).ids


def data_url(content: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


def test_what_models_read(model: Model, blind: Model) -> None:
    assert model.media_kinds == {"image"}
    assert model.projector.kinds == {"image"}
    assert blind.media_kinds == set()
    with pytest.raises(UnsupportedError, match=r"^blind\.gguf reads text only: there is no projector \(mmproj\) "):
        _ = blind.projector


def test_every_form_of_an_image_is_the_same(model: Model, png: Path) -> None:
    content = png.read_bytes()
    ids = ids_of(model, {"type": "image", "image": str(png)})
    assert sum(id < 0 for id in ids) == N_TOKENS
    decoded = read_image(content, "cat.png").pixels
    forms: list[dict[str, object]] = [
        {"type": "image", "image": png},
        {"type": "image", "image": content},
        {"type": "image", "image": decoded},
        {"type": "image", "image": Image(decoded)},
        {"type": "image", "image": data_url(content)},
        {"type": "image", "image": png.as_uri()},
        {"type": "image_url", "image_url": data_url(content)},
        {"type": "image_url", "image_url": {"url": data_url(content), "detail": "low"}},
        {"type": "image_url", "image_url": {"url": png.as_uri()}},
        {"type": "input_image", "image_url": data_url(content)},
    ]
    assert all(ids_of(model, form) == ids for form in forms)
    assert ids_of(model, {"type": "image", "image": picture(1)}) != ids


def test_the_answer_depends_on_the_image(model: Model) -> None:
    answers = [
        model.chat(asked({"type": "image", "image": picture(seed)}, QUESTION), logprobs=1, **GREEDY)
        for seed in (0, 1, 0)
    ]
    probabilities = [answer.logprobs[0].logprob for answer in answers]
    assert probabilities[0] == probabilities[2]
    assert probabilities[0] != probabilities[1]
    assert answers[0].stats.prompt_tokens > N_TOKENS


def test_an_image_is_encoded_once(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_twice = asked({"type": "image", "image": picture(7)}, QUESTION)
    first = model.chat(asked_twice, **GREEDY)
    monkeypatch.setattr(type(model.projector), "_image_parts", lambda *_: pytest.fail("encoded again"))
    more = [*asked_twice, first.as_message(), {"role": "user", "content": "and"}]
    second = model.chat(more, **GREEDY)
    ids = model.render(asked_twice).ids
    assert second.stats.reused_tokens > max(at for at, id in enumerate(ids) if id < 0)
    assert len(model.truncate_messages(more)) == 3


def test_truncation_counts_images_without_encoding_them(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    image = {"type": "image", "image": picture(11)}
    monkeypatch.setattr(type(model.projector), "_image_parts", lambda *_: pytest.fail("encoded"))
    turn = [*asked(image, image, QUESTION), {"role": "assistant", "content": "and"}]
    messages = [*turn * 60, *asked(image, QUESTION)]
    kept = model.truncate_messages(messages)
    assert 1 < len(kept) < len(messages)
    assert kept[0]["role"] == "user"
    assert len(model.render(kept, counts_media=True).ids) <= model.n_ctx // 2


def test_media_info(model: Model, png: Path) -> None:
    info = model.media_info(png)
    n_tokens = len(model.tokenize("", add_special=False, media=[png]))
    assert n_tokens > N_TOKENS  # with the text around the image
    assert (info.kind, info.width, info.height, info.n_tokens) == ("image", 40, 30, n_tokens)
    assert str(info) == f"40 x 30, {n_tokens} tokens"


def test_counted_and_encoded_prompts_are_equally_long(model: Model) -> None:
    part = {"type": "image", "image": picture()}
    assert len(ids_of(model, part, counts_media=True)) == len(ids_of(model, part))


# --- texts ---


def test_images_in_a_text(model: Model, png: Path) -> None:
    ids = model.tokenize("the <__media__> and <__media__>", media=[png, picture(1)])
    images = [[id for id in model.tokenize("", media=[each]) if id < 0] for each in (png, picture(1))]
    assert [id for id in ids if id < 0] == [*images[0], *images[1]]
    assert model.detokenize(ids, special=True).count("<__media__>") == 2
    assert "<__media__>" not in model.detokenize(ids)
    assert [id for id in model.tokenize("the", media=[png]) if id < 0] == images[0]  # before the text
    result = model.generate("the <__media__> and", media=[png], **GREEDY)
    assert result.stats.prompt_tokens == len(model.tokenize("the <__media__> and", media=[png]))
    assert model.generate(model.tokenize("the <__media__> and", media=[png]), **GREEDY).text == result.text


def test_the_marker_without_media_is_text(model: Model) -> None:
    assert min(model.tokenize("the <__media__>")) >= 0
    with pytest.raises(UsageError, match=r"^media: 1 for 2 markers <__media__> in the prompt$"):
        model.tokenize("<__media__><__media__>", media=[picture()])
    with pytest.raises(UsageError, match=r"^media: requires a text as the prompt$"):
        model.generate([1], media=[picture()])


# --- errors ---


@pytest.mark.parametrize(("part", "problem"), [
    ({"type": "image"}, "image: must be a path, bytes, a data: URL or an array"),
    ({"type": "image", "image": 5}, "image: must be a path, bytes, a data: URL or an array"),
    ({"type": "image", "image": "missing.png"}, "image: missing.png: No such file or directory"),
    ({"type": "image", "image": "/"}, "image: /: not a regular file"),
    ({"type": "image", "image": "data:image/png,abc"}, "image: must be base64"),
    ({"type": "image_url"}, "image_url: must be a URL"),
    ({"type": "image_url", "image_url": {"url": 5}}, "image_url.url: must be a URL"),
    ({"type": "image_url", "image_url": "cat.png"}, "image_url: must be a data: URL"),
    ({"type": "image_url", "image_url": "data:;base64,%%"}, "image_url: is not valid base64"),
    ({"type": "image_url", "image_url": "data:;base64,"}, "image_url: is empty"),
    ({"type": "image_url", "image_url": "http://localhost/"}, "image_url: addresses of the web are not fetched here"),
    ({"type": "image", "image": np.zeros((2, 2))}, "image: must be uint8 (height, width, 3), not float64"),
    ({"type": "image", "image": np.zeros((0, 2, 3), np.uint8)}, "image: must be uint8"),
    ({"type": "image", "image": b"text"}, ""),
    ({"type": "image", "ids": [1, 2]}, "image: must be a path"),
    ({"type": "film", "film": "a.mp4"}, "type: must be text, image, audio or video, not film"),
])  # fmt: skip
def test_invalid_parts(model: Model, part: dict[str, object], problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        model.chat(asked(QUESTION, part))
    field = f"messages[0].content[1].{problem}" if problem else "messages[0].content[1]"
    assert str(caught.value).startswith(field)


def test_models_that_do_not_see_or_hear(model: Model, blind: Model, folder: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"^messages\[0\]\.content\[0\]: blind\.gguf reads text ") as caught:
        blind.chat(asked({"type": "image", "image": picture()}))
    assert caught.value.exit_code == 3
    sound = Sound(np.zeros(16_000, np.float32))
    with pytest.raises(UnsupportedError, match=r"^messages\[0\]\.content\[0\]: the model reads images, and no audio$"):
        model.chat(asked({"type": "audio", "audio": sound}))
    with pytest.raises(UnsupportedError, match=r"^media\[0\]: the model reads images, and no audio$"):
        model.generate("the", media=[sound])
    with (
        localinfer.load(folder / "gemma3.gguf", threads=1, ctx_size=64, mmproj_auto=False) as text_only,
        pytest.raises(UnsupportedError, match=r"the model reads text only, because of --no-mmproj$"),
    ):
        text_only.chat(asked({"type": "image", "image": picture()}))


def test_projectors_that_do_not_fit(folder: Path, tmp_path: Path) -> None:
    model = str(folder / "gemma3.gguf")
    with pytest.raises(UsageError, match=r"gemma3\.gguf: general\.architecture: is 'gemma3'; the file of a projector"):
        localinfer.load(model, mmproj=model)
    other = projectors.write("idefics3", tmp_path)
    with pytest.raises(UsageError, match="idefics3 belongs to llama or smollm3 models, not to gemma3"):
        localinfer.load(model, mmproj=str(other))
    with pytest.raises(ModelNotFoundError, match="missing"):
        localinfer.load(model, mmproj=str(tmp_path / "missing.gguf"))
    with localinfer.load(model, mmproj=str(folder / "mmproj-gemma3.gguf"), mmproj_auto=False, threads=1) as loaded:
        assert loaded.media_kinds == {"image"}


def test_too_many_images_for_the_context(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(model.projector), "_image_parts", lambda *_: pytest.fail("encoded"))
    n_decoded = 0

    def count_and_decode(*arguments: Any) -> Any:
        nonlocal n_decoded
        n_decoded += 1
        return decode(*arguments)

    monkeypatch.setattr("localinfer.model.media_encoder.decode", count_and_decode)
    images = [{"type": "image", "image": picture(100 + number)} for number in range(100)]
    with pytest.raises(PromptTooLongError, match="use fewer or smaller images"):
        model.chat(asked(*images))
    assert n_decoded < 60  # no more than fit


def test_too_many_images(model: Model, tmp_path: Path) -> None:
    missing = {"type": "image", "image": str(tmp_path / "missing.png")}
    with pytest.raises(UsageError, match=r"^messages\[0\]\.content\[1000\].*: more than 1000 images, sounds and vid"):
        model.chat(asked(*[missing] * 1001))  # before one is read


def test_unknown_media_ids(model: Model) -> None:
    with pytest.raises(UsageError, match="token id -1000000 is not in the vocabulary"):
        model.generate([-1_000_000])


# --- what messages may name ---


def test_access_of_clients(model: Model, tmp_path: Path, png: Path) -> None:
    inside = tmp_path / "media"
    inside.mkdir()
    (inside / "a b.png").write_bytes(picture())
    (inside / "link.png").symlink_to(png)
    wanted = ids_of(model, {"type": "image", "image": picture()})
    some = MediaAccess(folder=inside)
    assert ids_of(model, {"type": "image_url", "image_url": "file://a%20b.png"}, media_access=some) == wanted
    assert ids_of(model, {"type": "image_url", "image_url": f"file://{inside}/a b.png"}, media_access=some) == wanted
    for refused in f"file://{png}", "file://../cat.png", "file://link.png":
        with pytest.raises(UsageError, match=r"image_url: .*is not in the folder of media files$"):
            ids_of(model, {"type": "image_url", "image_url": refused}, media_access=some)
    for damaged in "file://a%00b", "file://~nobody/a.png":
        with pytest.raises(UsageError, match=r"image_url: "):
            ids_of(model, {"type": "image_url", "image_url": damaged}, media_access=some)
    for part in {"type": "image", "image": str(png)}, {"type": "image_url", "image_url": png.as_uri()}:
        with pytest.raises(UsageError, match="files are not read here; send the content as a data: URL"):
            ids_of(model, part, media_access=INLINE_ONLY)


def test_addresses_of_the_web(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == "/cat.png"
            self.send_response(200 if found else 404)
            self.end_headers()
            self.wfile.write(picture() if found else b"")

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address, allowed = f"http://127.0.0.1:{server.server_port}", MediaAccess(urls=True)
    try:
        part = {"type": "image_url", "image_url": {"url": f"{address}/cat.png"}}
        assert ids_of(model, part, media_access=allowed) == ids_of(model, {"type": "image", "image": picture()})
        with pytest.raises(UsageError, match=r"content\[0\]\.image_url\.url: .*404"):
            ids_of(model, {"type": "image_url", "image_url": {"url": f"{address}/dog.png"}}, media_access=allowed)
        monkeypatch.setattr("localinfer.multimodal.parts.MAX_BYTES", 10)
        with pytest.raises(UsageError, match="larger than"):
            ids_of(model, part, media_access=allowed)
    finally:
        server.shutdown()


def test_images_that_exceed_the_memory_for_rows_together(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    images = [data_url(picture(seed)) for seed in (11, 12, 13)]
    parts = [{"type": "image", "image": each} for each in images]
    expected = model.chat(asked(*parts, QUESTION), **GREEDY, cache_prompt=False).text
    monkeypatch.setattr(media_table, "MAX_BYTES", 1)
    keywords = GREEDY | {"cache_prompt": False}
    assert model.chat(asked(*parts, QUESTION), **keywords).text == expected
    assert model.generate(model.render(asked(*parts, QUESTION)).ids, **keywords).text == expected
    assert model.score(model.render(asked(*parts, QUESTION)).ids, [5, 6])
    ids = model.tokenize("the", media=images)
    assert len(model.logits(ids)) == len(ids)


def test_rows_of_an_image_have_activations(model: Model, png: Path) -> None:
    keywords = {"media": [str(png)], **GREEDY}
    answer = model.generate("the <__media__> the", **keywords)
    with model.capture("token_embd", "blk.0.attn_weights") as trace:
        assert model.generate("the <__media__> the", **keywords).tokens == answer.tokens
    rows = np.array(trace.tokens) < 0
    assert rows.sum() == N_TOKENS
    assert len(np.unique(trace["token_embd"][rows], axis=0)) == N_TOKENS
    with pytest.raises(UnsupportedError, match=r"^blk\.0\.attn_weights: the text has images or sounds"):
        trace["blk.0.attn_weights"]

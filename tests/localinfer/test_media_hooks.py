"""Hooks at the points of encoders of images and sounds, with tiny models that see and hear."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hearing_model import speech, wav, write_hearing_model
from numpy.typing import NDArray
from seeing_model import N_TOKENS, picture, write_seeing_model

import localinfer
from localinfer import Model, UsageError
from localinfer.runtime.activations.hooks import RowInfo

Floats = NDArray[np.float32]
GREEDY: dict[str, Any] = {"temp": 0.0, "max_tokens": 6, "ignore_eos": True}
LAST, PATCHES = "v.blk.1.resid_post", 64  # rows of the encoder
QUESTION = [{"role": "user", "content": [{"type": "image", "image": picture()}, {"type": "text", "text": "the"}]}]


def zeros(values: Floats, info: RowInfo) -> Floats:
    return np.zeros_like(values)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path = write_seeing_model(tmp_path_factory.mktemp("seeing"))
    with localinfer.load(path, threads=1, prefix_store=False, parallel=2) as loaded:
        yield loaded


def answer(model: Model, messages: list[dict[str, Any]] = QUESTION) -> list[int]:
    return list(model.chat(messages, **GREEDY).tokens)


def test_points_of_both_are_listed(model: Model) -> None:
    points = model.points()
    assert points[LAST].shape == (32,)
    assert points["v.output"] == ((64,), "rows of an image that enter the language model")
    assert points["v.post_ln"].description.startswith("product, norm or convolution")
    assert list(points).index("v.output") < list(points).index("token_embd")
    with pytest.raises(UsageError, match=r"^v\.blk\.9\.resid_post: the model has no such point; similar: v\.blk\."):
        model.capture("v.blk.9.resid_post").__enter__()


def test_captures_have_the_rows_of_the_encoder_and_those_that_enter_the_model(model: Model) -> None:
    expected = answer(model)  # the image is encoded, and its rows are kept
    with model.capture(LAST, "v.output", "token_embd") as trace:
        assert answer(model) == expected
        is_image = np.array(trace.tokens) < 0
        assert is_image.sum() == N_TOKENS
        assert trace[LAST].shape == (PATCHES, 32)
        assert trace.positions(LAST).tolist() == list(range(PATCHES))
        np.testing.assert_array_equal(trace["v.output"], trace["token_embd"][is_image])
        two = [{"role": "user", "content": [QUESTION[0]["content"][0], {"type": "image", "image": picture(1)}]}]
        first = trace[LAST].copy()
        answer(model, two)
        assert trace[LAST].shape == (2 * PATCHES, 32)  # of the last run: image after image
        np.testing.assert_array_equal(trace[LAST][:PATCHES], first)
        assert trace.positions(LAST).tolist() == [*range(PATCHES), *range(PATCHES)]
    with model.capture("v.blk.*.attn_q") as trace:  # no point of the language model
        answer(model)
    assert sorted(trace) == ["v.blk.0.attn_q", "v.blk.1.attn_q"]
    assert min(trace.tokens) < 0


def test_patches_end_with_their_block(model: Model) -> None:
    expected, seen = answer(model), list[RowInfo]()

    def change(values: Floats, info: RowInfo) -> Floats:
        seen.append(info)
        return -values

    for _ in range(2):
        with model.patch({LAST: change}), model.capture("token_embd") as trace:
            changed = answer(model)
            rows = trace["token_embd"][np.array(trace.tokens) < 0]
        assert changed != expected
        with model.capture("token_embd") as trace:
            assert answer(model) == expected
        assert np.abs(rows - trace["token_embd"][np.array(trace.tokens) < 0]).max() > 0.01
    assert [info.name for info in seen] == [LAST, LAST]  # what was encoded with a patch is not kept
    assert (seen[0].tokens == -1).all()
    assert seen[0].positions.tolist() == list(range(PATCHES))


def test_rows_that_enter_the_model_are_replaced(model: Model) -> None:
    with model.patch({"v.output": zeros}), model.capture("token_embd") as trace:
        answer(model)
    assert not trace["token_embd"][np.array(trace.tokens) < 0].any()


def test_hooks_of_other_handles_are_not_called(model: Model) -> None:
    expected, other = answer(model), model.concurrent(1)
    with model.concurrent(0).patch({LAST: zeros}):
        assert answer(other) == expected
        assert answer(model.concurrent(0)) != expected


def test_an_exception_and_a_call_of_the_model_end_the_run(model: Model) -> None:
    expected = answer(model)

    def failing(values: Floats, info: RowInfo) -> Floats:
        raise KeyError(info.name)

    with model.patch({LAST: failing}), pytest.raises(KeyError, match=LAST):
        answer(model)
    with model.patch({LAST: lambda values, info: answer(model)}), pytest.raises(UsageError, match="a hook cannot"):
        answer(model)
    message = r"a patch returned an array of shape \(1, 32\); it must be \(64, 32\)"
    with model.patch({LAST: lambda values, info: values[:1]}), pytest.raises(UsageError, match=message):
        answer(model)
    assert answer(model) == expected


def test_sounds_have_points(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": [{"type": "audio", "audio": wav(speech(1.0))}]}]
    with localinfer.load(write_hearing_model(tmp_path), threads=1, prefix_store=False) as hearing:
        expected = answer(hearing, messages)
        with hearing.capture("a.blk.*.resid_post", "mm.*", "a.output", "token_embd") as trace:
            assert answer(hearing, messages) == expected
        np.testing.assert_array_equal(trace["a.output"], trace["token_embd"][np.array(trace.tokens) < 0])
        assert {"a.blk.2.resid_post", "mm.a.mlp.2"} <= set(trace)
        with hearing.patch({"a.blk.0.attn_heads": zeros}), hearing.capture("a.output") as changed:
            answer(hearing, messages)
        assert np.abs(changed["a.output"] - trace["a.output"]).max() > 1e-3

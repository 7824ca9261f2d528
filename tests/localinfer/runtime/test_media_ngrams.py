"""Rows of images have the token of images in the n-grams of a model."""

import json
from contextlib import closing
from pathlib import Path

import checkpoints
import numpy as np
import pytest
import reference_models
from engine_helpers import Logits, assert_close, media_ids
from media_rows import grid, random_rows

from localinfer import naive
from localinfer.gguf.reader import open_gguf
from localinfer.options import Options
from localinfer.runtime.engine import Engine
from localinfer.runtime.graph_building import Extensions

IMAGE = random_rows("image", 12, 96, n_positions=4, coordinates=grid(3, 4))
IMAGE_TOKEN = 250


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose configuration names the token of images beside that of the text model, as published ones do."""
    folder = reference_models.checkpoint("qwen4exp", tmp_path_factory.mktemp("model"))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    whole = {
        "architectures": ["Qwen4ExpForConditionalGeneration"], "model_type": "qwen4_exp", "text_config": config,
        "image_token_id": IMAGE_TOKEN,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(whole), encoding="utf-8")
    return checkpoints.as_f32(folder, folder.parent / "model.gguf")


def logits_of(path: Path, *, naively: bool, changed: int | None = None) -> Logits:
    """Return the logits of text around an image; `changed` is the token of images instead of the file's."""
    f = open_gguf(path)
    if changed is not None:
        f.metadata["qwen4exp.ple.image_token_id"] = changed
    if naively:
        model = naive.Model(f)
        model.media = [IMAGE]
        return naive.forward(model, [*range(5, 15), *range(-1, -13, -1), *range(40, 50)])
    options = Options(threads=2, ctx_size=64, precision="high")
    with closing(Engine.load(f, options, extensions=Extensions(media=True))) as engine:
        return engine.logits([*range(5, 15), *media_ids(engine, IMAGE), *range(40, 50)])


def test_logits_are_those_of_exact_arithmetic(path: Path) -> None:
    assert open_gguf(path).metadata["qwen4exp.ple.image_token_id"] == IMAGE_TOKEN
    assert_close(logits_of(path, naively=False), logits_of(path, naively=True))


def test_the_token_of_images_counts(path: Path) -> None:
    """It changes the logits of rows of an image, and those of the text behind them."""
    expected, other = (logits_of(path, naively=True, changed=each) for each in (None, IMAGE_TOKEN - 1))
    np.testing.assert_array_equal(expected[:10], other[:10])
    assert (np.abs(expected - other).max(1) > 1e-3)[10:].all()

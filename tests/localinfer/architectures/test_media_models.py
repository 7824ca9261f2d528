"""Text models of vision models compute what `transformers` computes with the rows of images: of several images, also of
grids that are not square, and of a video."""

import contextlib
from pathlib import Path

import checkpoints
import media_models
import numpy as np
import pytest
import reference_models
from engine_helpers import media_ids

from localinfer import naive
from localinfer.errors import LocalInferError
from localinfer.gguf.overrides import override_metadata
from localinfer.gguf.reader import open_gguf
from localinfer.options import Options
from localinfer.runtime.engine import Engine
from localinfer.runtime.graph_building import Extensions

EXACT = Options(ctx_size=128, threads=1, precision="high", cache_type_k="f32", cache_type_v="f32")


@pytest.mark.parametrize("name", media_models.NAMES)
def test_logits_with_images_agree_with_transformers(name: str, tmp_path: Path) -> None:
    check_logits(name, media_models.expected(name), tmp_path)


def test_logits_with_a_video_agree_with_transformers(tmp_path: Path) -> None:
    check_logits(media_models.VIDEO_MODEL, media_models.expected_with_video(), tmp_path)


def test_lengths_that_kernels_cannot_gather_are_refused(tmp_path: Path) -> None:
    path = checkpoints.as_type(reference_models.checkpoint("cogvlm", tmp_path), tmp_path / "m.gguf", "F32")
    f = override_metadata(open_gguf(path), {"cogvlm.attention.value_length": 20})
    with pytest.raises(LocalInferError, match=r"attention\.head_count: makes \(96, 96, 80\) values; they must be"):
        Engine.load(f, EXACT, extensions=Extensions(media=True))


def check_logits(name: str, reference: media_models.MediaReference, folder: Path) -> None:
    """Compare the logits of the naive model and of the engine with those of transformers."""
    path = checkpoints.as_type(reference_models.checkpoint(name, folder), folder / "m.gguf", "F32")
    model = naive.Model(open_gguf(path))
    limit = 1e-4 * np.abs(reference.logits).max()
    model.media, model.ctx_size = reference.images, EXACT.ctx_size
    np.testing.assert_allclose(
        naive.forward(model, reference.ids)[reference.positions], reference.logits, rtol=0, atol=limit
    )
    with contextlib.closing(Engine.load(open_gguf(path), EXACT, extensions=Extensions(media=True))) as engine:
        ids = [id for image in reference.images for id in media_ids(engine, image)]
        assert ids == [id for id in reference.ids if id < 0]
        logits = engine.logits(reference.ids)[reference.positions].copy()
        np.testing.assert_allclose(logits, reference.logits, rtol=0, atol=limit)

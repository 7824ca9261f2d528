"""Image processors give what transformers' processors give, for images of all sizes; their parameters are checked."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import recorded
from image_processors import KEYS, PROJECTOR_TYPES, write_keys
from locations import DATA
from made_images import SIZES, made_image
from preprocessing_results import STEP, digest_of_inputs, levels_of, pixels_of

from localinfer.errors import LocalInferError, UnsupportedError, UsageError
from localinfer.gguf.reader import open_gguf
from localinfer.multimodal.media import Image
from localinfer.multimodal.preprocessing.pixel_operations import pad
from localinfer.multimodal.preprocessing.processors import ImageProcessor, make_image_processor

EXPECTED: Mapping[str, list[dict[str, Any]]] = recorded.read("preprocessing")


def processor(folder: Path, name: str, min_tokens: int = 0, max_tokens: int = 0, **changes: Any) -> ImageProcessor:
    """Return the processor of a projector file with some keys changed."""
    return make_image_processor(open_gguf(write_keys(folder / name, name, **changes)), min_tokens, max_tokens)


@pytest.mark.parametrize("name", KEYS)
def test_equal_to_the_reference_processor(name: str, tmp_path: Path) -> None:
    """Pillow resizes in these. torchvision rounds differently: by 1 or 2 of 255, in flat areas and at sharp edges."""
    process = processor(tmp_path, name)
    levels = []
    for number, expected in enumerate(EXPECTED[name]):
        image = Image(made_image(number))
        inputs = process(image)
        images = [pixels_of(each, process.parameters.patch_size) for each in inputs]
        assert [list(each.shape[1:]) for each in images] == expected["shapes"], SIZES[number]
        assert [each.grid for each in inputs] == process.grids(*image.pixels.shape[:2])
        if "digest" in expected:
            assert digest_of_inputs(images) == expected["digest"], SIZES[number]
        else:
            levels.append(levels_of(images, KEYS[name]["image_mean"], KEYS[name]["image_std"])[::STEP])
    if levels:
        stored = np.load(DATA / "preprocessing.npz")[name]
        differences = np.abs(np.concatenate(levels).astype(int) - stored)
        assert differences.max() <= 2
        assert (differences > 0).mean() < 0.04
        assert (differences > 1).mean() < 0.001


def test_names_of_tiles(tmp_path: Path) -> None:
    image = Image(made_image(SIZES.index((900, 300))))
    names = [each.name for each in processor(tmp_path, "internvl")(image)]
    assert names == ["row 1, column 1", "row 1, column 2", "row 1, column 3", "overview"]
    assert processor(tmp_path, "idefics3")(image)[0].name == "overview"
    assert [each.name for each in processor(tmp_path, "gemma3")(image)] == ["overview"]


@pytest.mark.parametrize("name", ["dots_ocr", "glm4v", "lightonocr", "paddleocr", "pixtral", "qwen2vl_merger"])
def test_limits_of_tokens(name: str, tmp_path: Path) -> None:
    image = made_image(SIZES.index((640, 480)))
    few, many = processor(tmp_path, name, 4, 40), processor(tmp_path, name, 800, 900)
    token = few.parameters.merge**2
    assert 20 <= few(Image(image))[0].patches.shape[0] / token <= 40
    assert 800 <= many(Image(image))[0].patches.shape[0] / token <= 900


def test_whole_tokens_have_the_pixels_of_their_patches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = Image(made_image(SIZES.index((640, 480))))
    of_patches, size = processor(tmp_path, "gemma4v")(image)[0], 16
    monkeypatch.setitem(PROJECTOR_TYPES, "gemma4v", "gemma4uv")
    of_tokens = processor(tmp_path, "gemma4v")(image)[0]
    assert of_tokens.grid == (of_patches.grid[0] // 3, of_patches.grid[1] // 3)
    assert np.array_equal(pixels_of(of_tokens, 3 * size), pixels_of(of_patches, size))


@pytest.mark.parametrize("size", [6, 7])
def test_squares_of_a_convolution_of_stride_2(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROJECTOR_TYPES, "gemma4v", "gemma3nv")
    process = processor(tmp_path, "gemma4v", image_size=size, patch_size=1)
    pixels = np.random.default_rng(size).integers(0, 256, (size, size, 3), np.uint8)
    [found] = process(Image(pixels))
    assert [found.grid] == process.grids(5, 9)
    before = size % 2  # of the odd number of zeros, one more is at the end
    padded = np.pad(pixels.transpose(2, 0, 1) / np.float32(255), [(0, 0), (before, 1), (before, 1)])
    for number, patch in enumerate(found.patches):
        row, column = divmod(number, found.grid[1])
        square = padded[:, 2 * row : 2 * row + 3, 2 * column : 2 * column + 3]
        np.testing.assert_allclose(patch.reshape(3, 3, 3), square, rtol=0, atol=1e-7)


def test_limits_of_tokens_of_tiles(tmp_path: Path) -> None:
    image = Image(made_image(SIZES.index((640, 480))))
    limited = processor(tmp_path, "idefics3", max_tokens=4 * 4 * 2)
    assert len(limited(image)) < len(processor(tmp_path, "idefics3")(image))


def test_llava_shrinks_huge_images_before_it_pads_them(tmp_path: Path) -> None:
    strip = np.full((60, 5000, 3), 255, np.uint8)
    found = pixels_of(processor(tmp_path, "mlp")(Image(strip))[0], 14)
    assert found.shape == (3, 112, 112)


@pytest.mark.parametrize(
    ("name", "changes", "problem"),
    [
        ("gemma3", {"image_size": 9000}, r"clip\.vision\.image_size: must be from 14 to 8192, not 9000"),
        ("gemma3", {"image_size": 7}, r"clip\.vision\.image_size: must be from 14 to 8192, not 7"),
        ("gemma3", {"image_size": None}, r"clip\.vision\.image_size: is missing"),
        ("gemma3", {"patch_size": 0}, r"clip\.vision\.patch_size: must be from 1 to 256, not 0"),
        ("gemma3", {"image_mean": [0.5, 0.5]}, r"clip\.vision\.image_mean: must be three numbers"),
        ("gemma3", {"image_mean": [0.5, 0.5, 1e9]}, r"clip\.vision\.image_mean: must be three numbers"),
        ("gemma3", {"image_std": [0.5, 0.0, 0.5]}, r"clip\.vision\.image_std: must be three positive numbers"),
        ("gemma3", {"projector.scale_factor": 0}, r"projector\.scale_factor: must be from 1 to 64, not 0"),
        ("dots_ocr", {"image_max_pixels": None}, r"image_max_pixels: is missing"),
        ("dots_ocr", {"image_max_pixels": 1 << 28}, r"image_max_pixels: must be from 0 to 134217728"),
        ("dots_ocr", {"image_max_pixels": 100}, r"an image may have 100 pixels; it must be from 784 to"),
        ("dots_ocr", {"image_min_pixels": 400_000}, r"the fewest pixels of an image, 400000, are more than the most"),
        ("paddleocr", {"image_max_pixels": 0}, r"image_max_pixels: an image may have 0 pixels; it must be from"),
        ("pixtral", {"preproc_image_size": 0}, r"preproc_image_size: must be from 1 to 8192, not 0"),
        ("lightonocr", {"preproc_image_size": 0}, r"preproc_image_size: must be from 1 to 8192, not 0"),
        ("internvl", {"preproc_max_tiles": 1000}, r"preproc_max_tiles: must be from 1 to 64, not 1000"),
        ("internvl", {"preproc_min_tiles": 9}, r"preproc_min_tiles: must be from 1 to 8, not 9"),
        ("llava-1.6", {"image_grid_pinpoints": [112, 224, 336]}, r"must be pairs of a width and a height"),
        ("llava-1.6", {"image_grid_pinpoints": [112, 99_000]}, r"must be pairs of a width and a height"),
    ],
)
def test_invalid_keys(name: str, changes: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(LocalInferError, match=problem):
        processor(tmp_path, name, **changes)


@pytest.mark.parametrize(
    ("name", "changes", "n_tiles"),
    [
        ("idefics3", {"preproc_image_size": 4096, "image_size": 48}, 86 * 65),
        ("idefics3", {"image_max_pixels": 1 << 27, "image_min_pixels": 1 << 26}, "\\d+"),
        ("llava-1.6", {"image_grid_pinpoints": [8192, 8192]}, 73 * 73),
    ],
)
def test_too_many_tiles_are_refused(name: str, changes: dict[str, Any], n_tiles: object, tmp_path: Path) -> None:
    process = processor(tmp_path, name, **changes)
    problem = f"an image of 640 x 480 pixels would become {n_tiles} tiles; the limit is 64"
    with pytest.raises(LocalInferError, match=problem):
        process(Image(made_image(SIZES.index((640, 480)))))
    with pytest.raises(LocalInferError, match=problem):
        process.grids(480, 640)


def test_a_huge_image_of_idefics3_without_a_longest_edge_becomes_smaller(tmp_path: Path) -> None:
    process = processor(tmp_path, "idefics3", preproc_image_size=None)
    assert len(process.grids(480, 640)) == 1 + 5 * 6
    assert 1 + 40 < len(process.grids(12_000, 16_000)) <= 1 + 64


@pytest.mark.parametrize("name", ["deepseekocr", "mlp"])
def test_borders_have_a_color_though_the_mean_is_none(name: str, tmp_path: Path) -> None:
    process = processor(tmp_path, name, image_mean=[-1.0, 0.5, 2.0])
    [whole] = process(Image(np.full((8, 2, 3), 9, np.uint8)))
    border = whole.patches.reshape(len(whole.patches), 3, -1)[0, :, 0]
    mean, std = np.array(process.parameters.mean), np.array(process.parameters.std)
    np.testing.assert_allclose(border, (np.array([0, 127, 255]) / 255 - mean) / std, rtol=1e-6)


def test_canvases_have_a_limit(tmp_path: Path) -> None:
    process = processor(tmp_path, "internvl", image_size=1456, preproc_min_tiles=64, preproc_max_tiles=64)
    with pytest.raises(LocalInferError, match="an image of 640 x 480 pixels would become 11648 x 11648 pixels"):
        process(Image(made_image(SIZES.index((640, 480)))))
    with pytest.raises(LocalInferError, match="an image of 3 x 2 pixels would become 65536 x 4096 pixels"):
        pad(np.zeros((2, 3, 3), np.uint8), 4096, 1 << 16)


def test_impossible_limits_of_tokens(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="fewest pixels of an image"):
        processor(tmp_path, "qwen2vl_merger", min_tokens=20_000)
    with pytest.raises(UsageError, match="an image may have"):
        processor(tmp_path, "qwen2vl_merger", max_tokens=10**9)


def test_unknown_projector_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KEYS, "new", KEYS["gemma3"])  # type: ignore[misc]
    with pytest.raises(UnsupportedError, match=r"clip\.projector_type: images for the projector type 'new' are not"):
        processor(tmp_path, "new")


@pytest.mark.parametrize("name", ["glm4v", "pixtral", "qwen2vl_merger"])
def test_strips_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(LocalInferError, match=r"an image of .* pixels: the longer side may be at most 200 times"):
        processor(tmp_path, name)(Image(np.zeros((2, 6000, 3), np.uint8)))

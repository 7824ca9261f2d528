"""Write tests/data/media: the rows that vision towers of transformers make of random images, and the logits after them.

    python tests/making/make_media_fixtures.py            # all of them
    python tests/making/make_media_fixtures.py qwen2vl    # this one

Needs torch and transformers. The models are those of `make_reference_models`. A file has the text's `ids`, where -1 is
a row of an image; the `rows` of all images, one after another; the rows and columns of each image (`grids`); and the
`logits` at some `positions`.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import make_reference_models
import numpy as np
import torch

DATA = Path(__file__).parents[1] / "data" / "media"
GRIDS = [(3, 5), (4, 2), (1, 3)]  # rows and columns of the merged patches of each image
IMAGE_ID, START, END = 260, 258, 259
MODELS = ["qwen2vl", "qwen3vl", "qwen3vlmoe", "paddleocr", "gemma3-vision"]
MERGE = 2


def random_pixels(*shape: int) -> Any:
    values = make_reference_models.reference_models.random_integers("pixels", shape, 127)
    return torch.from_numpy(values / np.float32(127))


def text_with_images(lengths: Sequence[int]) -> list[int]:
    """Return a text with images of these numbers of rows, the first two without text between them."""
    text, first, *others = make_reference_models.IDS[:40], *lengths
    ids = [*text[:9], START, *[IMAGE_ID] * first, END]
    for number, length in enumerate(others):
        ids += [*text[9 : 9 + 7 * number], START, *[IMAGE_ID] * length, END]
    return [*ids, *text[16:]]


def flat_inputs(model: Any, temporal: int) -> tuple[dict[str, Any], Any]:
    """Return the inputs of a model that takes the patches of all images in a list, and the rows of its images."""
    grids = torch.tensor([(1, MERGE * rows, MERGE * columns) for rows, columns in GRIDS])
    count, patch = int(grids.prod(-1).sum()), 4
    # PaddleOCR-VL takes patches as images, the others as vectors.
    pixels = random_pixels(count, 3 * temporal * patch**2) if temporal > 1 else random_pixels(count, 3, patch, patch)
    inputs = {"pixel_values": pixels, "image_grid_thw": grids}
    features = model.get_image_features(**inputs)
    slices = [torch.cat(tuple(features.pooler_output))]
    slices += [torch.cat(tuple(each)) for each in getattr(features, "deepstack_features", None) or ()]
    return inputs, torch.cat(slices, dim=-1)


def gemma_inputs(model: Any) -> tuple[dict[str, Any], Any]:
    """Return the inputs of a model that takes square images of one size, and the rows of its images."""
    pixels = random_pixels(3, 3, 32, 32)
    rows = model.get_image_features(pixels).pooler_output
    return {"pixel_values": pixels}, rows.reshape(-1, rows.shape[-1])


def make(name: str) -> None:
    model = make_reference_models.write_and_load(name, make_reference_models.MODELS[name])
    is_gemma = name.startswith("gemma3")
    with torch.no_grad():
        inputs, rows = gemma_inputs(model) if is_gemma else flat_inputs(model, 1 if name == "paddleocr" else 2)
        grids = [(4, 4)] * 3 if is_gemma else GRIDS
        ids = torch.tensor([text_with_images([height * width for height, width in grids])])
        kinds = {"token_type_ids" if is_gemma else "mm_token_type_ids": (ids == IMAGE_ID).int()}
        logits = model(ids, **inputs, **kinds, use_cache=False).logits[0].numpy()
    is_row = ids[0].numpy() == IMAGE_ID
    positions = np.array([*range(5, len(is_row), 4), len(is_row) - 1])
    DATA.mkdir(exist_ok=True)
    np.savez_compressed(
        DATA / f"{name}.npz", ids=np.where(is_row, -1, ids[0].numpy()).astype(np.int16), rows=rows.numpy(),
        grids=np.array(grids, np.int16), positions=positions, logits=logits[positions],
    )  # fmt: skip
    print(f"{name:20} {len(ids[0])} tokens, rows {tuple(rows.shape)}, standard deviation of rows {rows.std():.2f}")


if __name__ == "__main__":
    for name in sys.argv[1:] or MODELS:
        make(name)

"""Write tests/data/media: the rows that vision towers of transformers make of random images, and the logits after them.

    python tests/making/make_media_fixtures.py            # all of them
    python tests/making/make_media_fixtures.py qwen2vl    # this one
    python tests/making/make_media_fixtures.py video      # tests/data/video_logits.npz

Needs torch and transformers. The models are those of `make_reference_models`. A file has the text's `ids`, where -1 is
a row of an image; the `rows` of all images, one after another; the rows and columns of each image (`grids`); and the
`logits` at some `positions`. video_logits.npz has the `coordinates` of the rows of a video instead of grids: pairs of
frames at unequal temporal positions, and text that begins behind the largest of them.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import make_reference_models
import numpy as np
import torch
from transformers.models.gemma4 import modeling_gemma4
from transformers.models.hunyuan_vl import modeling_hunyuan_vl

DATA = Path(__file__).parents[1] / "data" / "media"
GRIDS = [(3, 5), (4, 2), (1, 3)]  # rows and columns of the merged patches of each image
HUNYUAN_GRIDS = [(3, 4), (4, 2), (2, 3)]  # one line is not enough for its encoder
IMAGE_ID, START, END = 260, 258, 259
MODELS = [
    "qwen2vl", "qwen3vl", "qwen3vlmoe", "qwen35-vision", "paddleocr", "glm4v", "glm-ocr", "glm4vmoe", "gemma3-vision",
    "gemma4", "gemma4-dense", "hunyuan-vl", "cogvlm", "cogvlm2",
]  # fmt: skip
BIDIRECTIONAL = ["gemma3-vision", "gemma4-dense"]
MERGE = 2
PADDING_ID = 0  # whose per-layer embeddings rows of images get


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


def flat_inputs(
    model: Any, temporal: int, grids_of_rows: Sequence[tuple[int, int]] = GRIDS, *, flat: bool = False
) -> tuple[dict[str, Any], Any]:
    """Return the inputs of a model that takes the patches of all images in a list, and the rows of its images."""
    grids = torch.tensor([(1, MERGE * rows, MERGE * columns) for rows, columns in grids_of_rows])
    count, patch = int(grids.prod(-1).sum()), 4
    # PaddleOCR-VL takes patches as images, the others as vectors.
    is_flat = temporal > 1 or flat
    pixels = random_pixels(count, 3 * temporal * patch**2) if is_flat else random_pixels(count, 3, patch, patch)
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


def gemma4_logits(model: Any, ids: Any, rows: Any, *, bidirectional: bool) -> Any:
    """Return the logits of a text model of Gemma 4 after `ids` with these rows, as the whole model computes them."""
    is_row, text = ids == IMAGE_ID, model.model
    padded = torch.where(is_row, PADDING_ID, ids)
    embedded = text.embed_tokens(padded).masked_scatter(is_row[..., None], rows)
    per_layer = text.get_per_layer_inputs(padded, None) if text.config.hidden_size_per_layer_input else None
    masks = None
    if bidirectional:
        groups = modeling_gemma4.get_block_sequence_ids_for_mask(is_row.int(), ids.device)
        arguments = {"config": text.config, "inputs_embeds": embedded, "block_sequence_ids": groups}
        masks = modeling_gemma4.create_masks_for_vision_model(
            **arguments, attention_mask=None, cache=None, position_ids=torch.arange(ids.shape[1])[None]
        )
    return model(inputs_embeds=embedded, per_layer_inputs=per_layer, attention_mask=masks, use_cache=False).logits


def make_gemma4(name: str) -> None:
    model = make_reference_models.write_and_load(name, make_reference_models.MODELS[name])
    grids = [(5, 6), (2, 3), (4, 4)]  # the first one is larger than the window
    lengths = [height * width for height, width in grids]
    ids, rows = torch.tensor([text_with_images(lengths)]), 2 * random_pixels(sum(lengths), 96)
    with torch.no_grad():
        logits = gemma4_logits(model, ids, rows, bidirectional=name in BIDIRECTIONAL)[0].numpy()
    write(name, ids[0].numpy(), rows.numpy(), grids, logits)


def published_sections(self: Any, values: Any) -> Any:
    """Return the cosines or sines of each pair's own coordinate, (batch, rows, head): pairs are in sections, as in the
    published code of HunyuanOCR. transformers 5 gives the two halves of a pair different coordinates."""
    pairs = torch.cat([each[number] for number, each in enumerate(values.split(self.mrope_section, -1))], -1)
    return torch.cat([pairs, pairs], -1)


def make_hunyuan(name: str) -> None:
    """Rows of an image are enclosed by two rows, and each line ends with one."""
    modeling_hunyuan_vl.HunYuanVLRotaryEmbedding.recomposition_frequencies = published_sections
    model = make_reference_models.write_and_load(name, make_reference_models.MODELS[name])
    with torch.no_grad():
        inputs, rows = flat_inputs(model, 1, HUNYUAN_GRIDS, flat=True)
        ids = torch.tensor([text_with_images([height * (width + 1) + 2 for height, width in HUNYUAN_GRIDS])])
        kinds = {"mm_token_type_ids": (ids == IMAGE_ID).int()}
        logits = model(ids, **inputs, **kinds, use_cache=False).logits[0].numpy()
    write(name, ids[0].numpy(), rows.numpy(), HUNYUAN_GRIDS, logits)


def make_cogvlm(name: str) -> None:
    """Rows of an image begin and end with a row of their own."""
    model = make_reference_models.write_and_load(name, make_reference_models.MODELS[name])
    grids = [(3, 4), (5, 5), (1, 1)]
    lengths = [height * width + 2 for height, width in grids]
    ids, rows = torch.tensor([text_with_images(lengths)]), 2 * random_pixels(sum(lengths), model.config.hidden_size)
    with torch.no_grad():
        logits = model(ids, rows).logits[0].numpy()
    write(name, ids[0].numpy(), rows.numpy(), grids, logits)


def make(name: str) -> None:
    if name.startswith("cogvlm"):
        make_cogvlm(name)
        return
    if name.startswith("hunyuan"):
        make_hunyuan(name)
        return
    if name.startswith("gemma4"):
        make_gemma4(name)
        return
    model = make_reference_models.write_and_load(name, make_reference_models.MODELS[name])
    is_gemma = name.startswith("gemma3")
    with torch.no_grad():
        inputs, rows = gemma_inputs(model) if is_gemma else flat_inputs(model, 1 if name == "paddleocr" else 2)
        grids = [(4, 4)] * 3 if is_gemma else GRIDS
        ids = torch.tensor([text_with_images([height * width for height, width in grids])])
        kinds = {"token_type_ids" if is_gemma else "mm_token_type_ids": (ids == IMAGE_ID).int()}
        logits = model(ids, **inputs, **kinds, use_cache=False).logits[0].numpy()
    write(name, ids[0].numpy(), rows.numpy(), grids, logits)


def make_video() -> None:
    """Write what Qwen2.5-VL's text model computes with a video whose temporal positions are times."""
    model = make_reference_models.write_and_load("qwen2vl", make_reference_models.MODELS["qwen2vl"])
    grid, text = (4, 2 * MERGE, 3 * MERGE), make_reference_models.IDS[:40]
    count = grid[0] * grid[1] * grid[2] // MERGE**2
    ids = torch.tensor([[*text[:9], START, *[IMAGE_ID] * count, END, *text[9:]]])
    coordinates = model.model.get_vision_position_ids(0, torch.tensor(grid), 1, MERGE, 2.6)
    before, after = torch.arange(10).expand(3, -1), torch.arange(ids.shape[1] - count - 10).expand(3, -1)
    positions = torch.cat([before, 10 + coordinates, 10 + coordinates.max() + 1 + after], 1)[:, None]
    rows, is_row = random_pixels(count, model.config.text_config.hidden_size), ids == IMAGE_ID
    with torch.no_grad():
        embedded = model.get_input_embeddings()(ids).masked_scatter(is_row[..., None], rows)
        logits = model(inputs_embeds=embedded, position_ids=positions, use_cache=False).logits[0].numpy()
    chosen = np.array([*range(5, ids.shape[1], 4), ids.shape[1] - 1])
    np.savez_compressed(
        DATA.parent / "video_logits.npz", ids=np.where(is_row[0], -1, ids[0]).astype(np.int16), rows=rows.numpy(),
        coordinates=coordinates.T.numpy().astype(np.int32), positions=chosen, logits=logits[chosen],
    )  # fmt: skip


def write(name: str, ids: Any, rows: Any, grids: Sequence[tuple[int, int]], logits: Any) -> None:
    is_row = ids == IMAGE_ID
    positions = np.array([*range(5, len(ids), 4), len(ids) - 1])
    DATA.mkdir(exist_ok=True)
    np.savez_compressed(
        DATA / f"{name}.npz", ids=np.where(is_row, -1, ids).astype(np.int16), rows=rows,
        grids=np.array(grids, np.int16), positions=positions, logits=logits[positions],
    )  # fmt: skip
    print(f"{name:20} {len(ids)} tokens, rows {rows.shape}, standard deviation of rows {rows.std():.2f}")


if __name__ == "__main__":
    for name in sys.argv[1:] or [*MODELS, "video"]:
        make_video() if name == "video" else make(name)

"""Write tests/data/preprocessing.json.xz and preprocessing.npz: what transformers' image processors make of made
images.

    python tests/making/make_preprocessing_fixtures.py         # with all processors
    python tests/making/make_preprocessing_fixtures.py gemma3  # with these; the others remain

Needs torch, torchvision, transformers, Pillow and the packages of localinfer, with whose results the script compares
them. Processors that use Pillow must give equal values, of which a digest is stored. Those that use torchvision may
differ by 1 of 255 at 1 % of the pixels: their values are stored at every 997th place, in steps of 1/255.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageOps
import torch
from numpy.typing import NDArray
from transformers.models.deepseek_ocr2.image_processing_pil_deepseek_ocr2 import DeepseekOcr2ImageProcessorPil
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil
from transformers.models.glm5_next.image_processing_pil_glm5_next import Glm5NextImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.hunyuan_vl.image_processing_pil_hunyuan_vl import HunYuanVLImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.kimi_k25.image_processing_kimi_k25 import Kimi_K25ImageProcessor
from transformers.models.lfm2_vl.image_processing_lfm2_vl import Lfm2VlImageProcessor
from transformers.models.llama4.image_processing_llama4 import Llama4ImageProcessor
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
from transformers.models.minicpmv4_6.image_processing_pil_minicpmv4_6 import MiniCPMV4_6ImageProcessorPil
from transformers.models.muse_glimmer.image_processing_muse_glimmer import MuseGlimmerImageProcessor
from transformers.models.paddleocr_vl.image_processing_pil_paddleocr_vl import PaddleOCRVLImageProcessorPil
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS.parent), str(TESTS), str(TESTS / "models"), str(TESTS / "oracles")]

import recorded  # noqa: E402
from image_processors import CLIP_MEAN, CLIP_STD, HALF, KEYS, write_keys  # noqa: E402
from made_images import SIZES, made_image  # noqa: E402
from preprocessing_results import STEP, digest_of_inputs, levels_of, pixels_of  # noqa: E402

from localinfer.gguf.reader import open_gguf  # noqa: E402
from localinfer.multimodal.media import Image  # noqa: E402
from localinfer.multimodal.preprocessing.processors import make_image_processor  # noqa: E402

DATA = TESTS / "data"
TORCHVISION = ("kimivl", "lfm2", "llama4", "muse-glimmer")
Values = NDArray[np.float32]  # (channels, height, width)
NORMALIZED = {"image_mean": HALF, "image_std": HALF}
CLIP = {"image_mean": CLIP_MEAN, "image_std": CLIP_STD}


def square(size: int) -> dict[str, int]:
    return {"height": size, "width": size}


def edges(shortest: int, longest: int) -> dict[str, int]:
    return {"shortest_edge": shortest, "longest_edge": longest}


def merged_patches(patches: Any, grid: Any, patch: int, merge: int, temporal: int) -> list[Values]:
    """Return the image that consists of patches in the order of Qwen2-VL: tokens first, then the patches of a token."""
    rows, columns = int(grid[0][1]) // merge, int(grid[0][2]) // merge
    values = np.asarray(patches).reshape(rows, columns, merge, merge, 3, temporal, patch, patch)[:, :, :, :, :, 0]
    return [values.transpose(4, 0, 2, 5, 1, 3, 6).reshape(3, rows * merge * patch, columns * merge * patch)]


def qwen_like(processor: Any, patch: int, merge: int, temporal: int) -> Callable[[Any], list[Values]]:
    def run(image: Any) -> list[Values]:
        found = processor(image)
        return merged_patches(found["pixel_values"], found["image_grid_thw"], patch, merge, temporal)

    return run


def gemma4(image: Any) -> list[Values]:
    found = Gemma4ImageProcessorPil()(image, return_tensors="np")
    positions = found["image_position_ids"][0]
    n = int((positions[:, 0] >= 0).sum())
    columns, rows = (int(positions[:n, axis].max()) + 1 for axis in (0, 1))
    patches = found["pixel_values"][0][:n].reshape(rows, columns, 16, 16, 3)
    return [patches.transpose(4, 0, 2, 1, 3).reshape(3, rows * 16, columns * 16)]


def lfm2(image: Any) -> list[Values]:
    found = Lfm2VlImageProcessor(**NORMALIZED)(image, return_tensors="pt")
    images = []
    for patches, (rows, columns) in zip(found["pixel_values"], found["spatial_shapes"].tolist(), strict=True):
        grid = patches[: rows * columns].reshape(rows, columns, 16, 16, 3)
        images.append(grid.permute(4, 0, 2, 1, 3).reshape(3, rows * 16, columns * 16).numpy())
    return images


def kimi(image: Any) -> list[Values]:
    processor = Kimi_K25ImageProcessor(max_patches=250_000 // 196, **NORMALIZED)
    found = processor(image, return_tensors="pt")
    _, rows, columns = found["image_grid_thw"][0].tolist()
    patches = found["pixel_values"].reshape(rows, columns, 3, 14, 14)
    return [patches.permute(2, 0, 3, 1, 4).reshape(3, rows * 14, columns * 14).numpy()]


def muse(image: Any) -> list[Values]:
    """A patch has two equal frames, one after the other."""
    found = MuseGlimmerImageProcessor(max_image_tokens=100)(image, return_tensors="pt")
    _, rows, columns = found["image_grid_thw"][0].tolist()
    patches = found["pixel_values"].reshape(rows, columns, 2, 3, 14, 14)[:, :, 0]
    return [patches.permute(2, 0, 3, 1, 4).reshape(3, rows * 14, columns * 14).numpy()]


def llama4(image: Any) -> list[Values]:
    found = Llama4ImageProcessor(size=square(84))(image, return_tensors="pt")
    return list(found["pixel_values"].float().numpy())


def deepseekocr(image: Any) -> list[Values]:
    """The tiles of the second version's processor, and the whole image as published code of the first one pads it."""
    processor = DeepseekOcr2ImageProcessorPil(tile_size=640, max_patches=9, **NORMALIZED)
    found = processor(image, return_tensors="np")
    tiles = found.get("pixel_values_local", ())
    padded = PIL.ImageOps.pad(image, (1024, 1024), color=(127, 127, 127))
    return [*tiles, *processor(padded, return_tensors="np", crop_to_patches=True)["pixel_values"]]


def idefics3(image: Any) -> list[Values]:
    processor = Idefics3ImageProcessorPil(size={"longest_edge": 384}, max_image_size={"longest_edge": 96}, **NORMALIZED)
    *tiles, overview = processor(image, return_tensors="np")["pixel_values"][0]
    return [overview, *tiles]


def minicpm(image: Any, mode: str = "4x") -> list[Values]:
    """MiniCPM-V 4.6 divides images as older versions do, but in steps of 4 x 4 patches, or of 2 x 2: for older versions
    those of half the size."""
    processor = MiniCPMV4_6ImageProcessorPil(scale_resolution=112, patch_size=7, downsample_mode=mode, **NORMALIZED)
    found = processor(image, return_tensors="np")
    views, first = [], 0
    for rows, columns in found["target_sizes"].tolist():
        width = rows * columns * 7
        patches = found["pixel_values"][0][:, :, first : first + width].reshape(3, 7, rows, columns, 7)
        views.append(patches.transpose(0, 2, 1, 3, 4).reshape(3, rows * 7, columns * 7))
        first += width
    return views


def pixel_values(processor: Any, **options: Any) -> Callable[[Any], list[Values]]:
    return lambda image: list(np.asarray(processor(image, return_tensors="np", **options)["pixel_values"]))


REFERENCES: dict[str, Callable[[Any], list[Values]]] = {
    "cogvlm": pixel_values(Gemma3ImageProcessorPil(size=square(112), resample=PIL.Image.Resampling.BICUBIC, **CLIP)),
    "deepseekocr": deepseekocr,
    "dots_ocr": qwen_like(Qwen2VLImageProcessorPil(size=edges(3136, 300_000)), 14, 2, 2),
    "gemma3": pixel_values(Gemma3ImageProcessorPil(size=square(112))),
    "gemma4v": gemma4,
    "glm4v": qwen_like(Glm4vImageProcessorPil(size=edges(2 * 8 * 784, 2 * 4096 * 784)), 14, 2, 2),
    "glm5v": qwen_like(Glm5NextImageProcessorPil(min_image_tokens=16, max_image_tokens=400), 14, 2, 2),
    "hunyuanvl": qwen_like(HunYuanVLImageProcessorPil(size=edges(65_536, 400_000)), 16, 1, 1),
    "idefics3": idefics3,
    "internvl": pixel_values(
        GotOcr2ImageProcessorPil(size=square(112), crop_to_patches=True, min_patches=1, max_patches=8, **CLIP)
    ),
    "kimivl": kimi,
    "lfm2": lfm2,
    "lightonocr": pixel_values(PixtralImageProcessorPil(size={"longest_edge": 420}, patch_size=28)),
    "llama4": llama4,
    "llava-1.6": lambda image: list(
        LlavaNextImageProcessorPil(
            size={"shortest_edge": 112}, crop_size=square(112),
            image_grid_pinpoints=[[224, 112], [112, 224], [224, 224], [112, 336], [336, 112]],  # heights first
        )(image, return_tensors="np")["pixel_values"][0]
    ),
    "minicpmv4_6": partial(minicpm, mode="16x"),
    "mlp": pixel_values(LlavaImageProcessorPil(size={"shortest_edge": 112}, crop_size=square(112), do_pad=True)),
    "muse-glimmer": muse,
    "paddleocr": qwen_like(PaddleOCRVLImageProcessorPil(size=edges(147_384, 400_000)), 14, 1, 1),
    "pixtral": pixel_values(PixtralImageProcessorPil(size={"longest_edge": 320}, patch_size=16)),
    "resampler": minicpm,
    "qwen2vl_merger": qwen_like(Qwen2VLImageProcessorPil(size=edges(8 * 784, 4096 * 784)), 14, 2, 2),
}  # fmt: skip


def main() -> None:
    """Run all processors, compare them with localinfer's and write the files."""
    torch.set_num_threads(1)
    wanted = sys.argv[1:]
    digests: dict[str, list[dict[str, Any]]] = recorded.read("preprocessing") if wanted else {}
    stored: dict[str, NDArray[np.uint8]] = dict(np.load(DATA / "preprocessing.npz")) if wanted else {}
    with TemporaryDirectory() as folder:
        for name in wanted or KEYS:
            processor = make_image_processor(open_gguf(write_keys(Path(folder) / name, name)))
            mean, std = KEYS[name]["image_mean"], KEYS[name]["image_std"]
            equal, worst, most = 0, 0, 0.0
            digests[name], samples = [], []
            for number in range(len(SIZES)):
                pixels = made_image(number)
                image = PIL.Image.fromarray(pixels)
                values = [np.asarray(each, np.float32) for each in REFERENCES[name](image)]
                digests[name].append(
                    {"shapes": [each.shape[1:] for each in values], "digest": digest_of_inputs(values)}
                )
                ours = [pixels_of(each, processor.parameters.patch_size) for each in processor(Image(pixels))]
                shapes = [each.shape for each in values]
                if [each.shape for each in ours] != shapes:
                    sys.exit(f"{name}: image {number} has {[each.shape for each in ours]}, not {shapes}")
                equal += digest_of_inputs(ours) == digests[name][-1]["digest"]
                reference = levels_of(values, mean, std)
                differences = np.abs(levels_of(ours, mean, std).astype(int) - reference)
                worst, most = max(worst, int(differences.max())), max(most, float((differences > 0).mean()))
                samples.append(reference[::STEP])
            print(f"{name}: {equal} of {len(SIZES)} equal, else at most {worst}/255 at {most:.2%} of the pixels")
            if name in TORCHVISION:
                stored[name] = np.concatenate(samples)
    for name in TORCHVISION:
        for each in digests[name]:
            each.pop("digest", None)
    recorded.write("preprocessing", dict(sorted(digests.items())))
    np.savez_compressed(DATA / "preprocessing.npz", **stored)


if __name__ == "__main__":
    main()

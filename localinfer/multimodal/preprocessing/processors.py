"""The image processor of a projector file, by its projector type.

Defaults are those of llama.cpp where the file has no key, because projector files are written for it; how images are
resized, padded and divided is that of the model's own processor.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from localinfer.errors import UnsupportedError, UsageError
from localinfer.escaping import printable
from localinfer.gguf.reader import GGUF
from localinfer.multimodal.media import Image
from localinfer.multimodal.preprocessing.deepseekocr import TilesAndPaddedOverview
from localinfer.multimodal.preprocessing.encoder_input import EncoderInput
from localinfer.multimodal.preprocessing.fixed_size import FixedSize
from localinfer.multimodal.preprocessing.gemma3n import StemSquares
from localinfer.multimodal.preprocessing.gemma4 import MostTokens
from localinfer.multimodal.preprocessing.glm5v import AlignedCanvas
from localinfer.multimodal.preprocessing.idefics3 import Idefics3Tiles
from localinfer.multimodal.preprocessing.image_parameters import (
    MAX_IMAGE_SIZE,
    MAX_MERGE,
    MAX_PATCH_SIZE,
    MAX_PIXELS,
    MAX_TILES,
    PREFIX,
    Filter,
    ImageParameters,
    read_count,
    read_mean_and_std,
    read_resolutions,
)
from localinfer.multimodal.preprocessing.internvl import NearestGrid
from localinfer.multimodal.preprocessing.kimi_vl import PaddedTokens
from localinfer.multimodal.preprocessing.lfm2 import LargeImageTiles
from localinfer.multimodal.preprocessing.llama4 import BestCanvas
from localinfer.multimodal.preprocessing.llava_next import AnyResolution
from localinfer.multimodal.preprocessing.minicpmv import Slices
from localinfer.multimodal.preprocessing.muse_glimmer import NearestTokens
from localinfer.multimodal.preprocessing.pixtral import LongestEdge
from localinfer.multimodal.preprocessing.smart_resize import SmartResize, enlarge_sides_to_token, enlarge_to_token
from localinfer.multimodal.preprocessing.square_padding import SquarePadding

SCALE_FACTOR, SPATIAL_MERGE = "projector.scale_factor", "spatial_merge_size"


class ImageProcessor(Protocol):
    """Makes encoder inputs of an image."""

    @property
    def parameters(self) -> ImageParameters: ...

    def grids(self, height: int, width: int) -> list[tuple[int, int]]:
        """Return the rows and columns of patches of each encoder input that an image of this size becomes."""

    def __call__(self, image: Image) -> list[EncoderInput]:
        """Return the encoder inputs of an image, in the order in which the model reads them."""


@dataclass(frozen=True)
class ProcessorKind:
    """What preprocessing has in common for all files of a projector type.

    `tokens` are the fewest and the most tokens of an encoder input, unless the file or the user sets them; 0 stands for
    no limit, and None for a file that must have `image_min_pixels` and `image_max_pixels`. The encoder reads patches,
    or `whole_tokens`, squares of `merge` patches.
    """

    make: Callable[[ImageParameters], ImageProcessor]
    merge: int = 1
    merge_key: str = ""
    filter: Filter = "bicubic"
    tokens: tuple[int, int] | None = (0, 0)
    tiles: tuple[int, int] = (1, 1)
    whole_tokens: bool = False


def _llava(parameters: ImageParameters) -> ImageProcessor:
    return AnyResolution(parameters) if parameters.resolutions else SquarePadding(parameters)


QWEN: Final = ProcessorKind(SmartResize, 2, SPATIAL_MERGE, tokens=(8, 4096))
LLAVA: Final = ProcessorKind(_llava)

KINDS: Final[Mapping[str, ProcessorKind]] = {
    "cogvlm": ProcessorKind(FixedSize, 1, SPATIAL_MERGE),
    "deepseekocr": ProcessorKind(TilesAndPaddedOverview, 4, tiles=(2, 9)),
    "deepseekocr2": ProcessorKind(lambda parameters: TilesAndPaddedOverview(parameters, 768), 4, tiles=(2, 6)),
    "dots_ocr": ProcessorKind(SmartResize, 1, SCALE_FACTOR, tokens=None),
    "exaone4_5": ProcessorKind(SmartResize, 2, SPATIAL_MERGE, tokens=None),
    "gemma3": ProcessorKind(FixedSize, 4, SCALE_FACTOR, "bilinear"),
    "gemma3nv": ProcessorKind(StemSquares, 1, SCALE_FACTOR, "bilinear"),
    "gemma4v": ProcessorKind(MostTokens, 3, SCALE_FACTOR, tokens=(0, 280)),
    "gemma4uv": ProcessorKind(MostTokens, 3, SCALE_FACTOR, tokens=(0, 280), whole_tokens=True),
    "glm4v": ProcessorKind(
        lambda parameters: SmartResize(parameters, enlarge_to_token), 2, SPATIAL_MERGE, tokens=(8, 4096)
    ),
    "glm5v": ProcessorKind(AlignedCanvas, 2, SPATIAL_MERGE, tokens=None),
    "hunyuanvl": ProcessorKind(SmartResize, 2, SPATIAL_MERGE, tokens=(256, 16384)),
    "idefics3": ProcessorKind(Idefics3Tiles, 1, SCALE_FACTOR, "lanczos"),
    "internvl": ProcessorKind(NearestGrid, 1, SCALE_FACTOR, tiles=(1, 12)),
    "kimik25": ProcessorKind(PaddedTokens, 1, SCALE_FACTOR, tokens=(0, 4096)),
    "kimivl": ProcessorKind(PaddedTokens, 1, SCALE_FACTOR, tokens=(0, 1024)),
    "ldp": LLAVA,
    "ldpv2": LLAVA,
    "lfm2": ProcessorKind(LargeImageTiles, 1, SCALE_FACTOR, "bilinear", tokens=(64, 256)),
    "lightonocr": ProcessorKind(LongestEdge, 1, SPATIAL_MERGE),
    "llama4": ProcessorKind(BestCanvas, 1, SCALE_FACTOR, "bilinear", tiles=(1, 16)),
    "minicpmv4_6": ProcessorKind(Slices, 4, SCALE_FACTOR, tiles=(1, 9)),
    "minimax_m3": ProcessorKind(SmartResize, 2, SPATIAL_MERGE, tokens=(4, 576)),
    "mlp": LLAVA,
    "mlp_norm": LLAVA,
    "muse-glimmer": ProcessorKind(NearestTokens, 2, SPATIAL_MERGE, "lanczos", tokens=(1, 4096)),
    "nemotron_v2_vl": ProcessorKind(NearestGrid, 1, SCALE_FACTOR, tiles=(1, 12)),
    "paddleocr": ProcessorKind(lambda parameters: SmartResize(parameters, enlarge_sides_to_token), 2, tokens=None),
    "pixtral": ProcessorKind(LongestEdge, 1, SPATIAL_MERGE),
    "qwen2.5o": QWEN,
    "qwen2.5vl_merger": QWEN,
    "qwen2vl_merger": QWEN,
    "qwen3vl_merger": QWEN,
    "resampler": ProcessorKind(Slices, tiles=(1, 9)),
}


def make_image_processor(f: GGUF, min_tokens: int = 0, max_tokens: int = 0) -> ImageProcessor:
    """Return the processor that the keys of a projector file describe.

    `min_tokens` and `max_tokens` limit the tokens of an encoder input, 0 for what the file or the model prescribes.
    Raises LocalInferError if a key is missing or invalid.
    """
    projector_type = f.get("clip.projector_type", str, "") or f.get(PREFIX + "projector_type", str)
    kind = KINDS.get(projector_type)
    if kind is None:
        problem = f"images for the projector type '{printable(projector_type, 40)}' are not supported"
        raise f.error("clip.projector_type", problem, UnsupportedError)
    return kind.make(read_image_parameters(f, kind, min_tokens, max_tokens))


def read_image_parameters(f: GGUF, kind: ProcessorKind, min_tokens: int = 0, max_tokens: int = 0) -> ImageParameters:
    """Return the parameters of a file, whose bounds are checked. Raises LocalInferError."""
    patch_size = read_count(f, "patch_size", None, minimum=1, maximum=MAX_PATCH_SIZE)
    smallest = patch_size if kind.tokens == (0, 0) else 0  # 0 in files of models without a size of their own
    image_size = read_count(f, "image_size", None, minimum=smallest, maximum=MAX_IMAGE_SIZE)
    merge = kind.merge
    if kind.merge_key:
        merge = read_count(f, kind.merge_key, merge, minimum=1, maximum=MAX_MERGE)
    min_pixels, max_pixels = read_pixel_limits(f, kind, (patch_size * merge) ** 2, min_tokens, max_tokens)
    mean, std = read_mean_and_std(f)
    fewest, most = kind.tiles
    if fewest < most:
        most = read_count(f, "preproc_max_tiles", most, minimum=1, maximum=MAX_TILES)
        fewest = read_count(f, "preproc_min_tiles", fewest, minimum=1, maximum=most)
    longest_edge = image_size if kind.make is LongestEdge else 0  # such a file cannot lack a longest edge
    least = min(longest_edge, 1)
    return ImageParameters(
        image_size=image_size,
        patch_size=patch_size * merge if kind.whole_tokens else patch_size,
        mean=mean,
        std=std,
        merge=1 if kind.whole_tokens else merge,
        filter=kind.filter,
        min_pixels=min_pixels,
        max_pixels=max_pixels,
        longest_edge=read_count(f, "preproc_image_size", longest_edge, minimum=least, maximum=MAX_IMAGE_SIZE),
        min_tiles=fewest,
        max_tiles=most,
        resolutions=read_resolutions(f),
    )


def read_pixel_limits(
    f: GGUF, kind: ProcessorKind, token_pixels: int, min_tokens: int, max_tokens: int
) -> tuple[int, int]:
    """Return the fewest and the most pixels of an encoder input: the user's limits, the file's, or the default ones."""
    fewest, most = kind.tokens or (0, 0)
    required = None if kind.tokens is None else 0
    min_pixels = read_count(f, "image_min_pixels", required, minimum=0, maximum=MAX_PIXELS) or fewest * token_pixels
    max_pixels = read_count(f, "image_max_pixels", required, minimum=0, maximum=MAX_PIXELS) or most * token_pixels
    if min_tokens:
        min_pixels = min_tokens * token_pixels
    if max_tokens:
        max_pixels = max_tokens * token_pixels
    is_limited = max_pixels > 0 or kind.tokens is None
    if is_limited and not token_pixels <= max_pixels <= MAX_PIXELS:
        problem = f"an image may have {max_pixels} pixels; it must be from {token_pixels} to {MAX_PIXELS}"
        raise UsageError(problem) if max_tokens else f.error(PREFIX + "image_max_pixels", problem)
    if max_pixels and min_pixels > max_pixels:
        problem = f"the fewest pixels of an image, {min_pixels}, are more than the most, {max_pixels}"
        raise UsageError(problem) if min_tokens or max_tokens else f.error(PREFIX + "image_min_pixels", problem)
    return min_pixels, max_pixels

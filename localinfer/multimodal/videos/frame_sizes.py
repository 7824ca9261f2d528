"""The sizes to which the frames of a video are resized, one after the other, as the model's own processor does it.

Arguments are the parameters of images, the height, the width and the number of the frames, and the fewest and the most
pixels of a frame.
"""

import math

from localinfer.multimodal.preprocessing.glm5v import PAIR, CanvasLimits
from localinfer.multimodal.preprocessing.idefics3 import longest_edge_size
from localinfer.multimodal.preprocessing.image_parameters import ImageParameters
from localinfer.multimodal.preprocessing.smart_resize import check_aspect_ratio, enlarge_to_token, smart_size

Size = tuple[int, int]
PIXELS_MARGIN = 1.05  # the most pixels of a frame exceed the fewest ones by this factor
QWEN2_TOKENS = int(128_000 * 0.9)  # of all pairs of a video
QWEN3_PIXELS = 25_165_824, 4096  # the most of all frames of a video, and the fewest
GLM4V_PIXELS = 47_040_000, 12_544
GLM5V_TOKENS = 240_000  # of all pairs of a video


def qwen2_sizes(p: ImageParameters, height: int, width: int, n: int, fewest: int, most: int) -> list[Size]:
    """Return the size of images, which is smaller in videos of many frames (Qwen2-VL, Qwen2.5-VL)."""
    share = QWEN2_TOKENS * p.token_size**2 * PAIR // n
    check_aspect_ratio(height, width)
    return [smart_size(height, width, p.token_size, fewest, max(min(most, share), int(fewest * PIXELS_MARGIN)))]


def qwen3_sizes(p: ImageParameters, height: int, width: int, n: int, fewest: int, most: int) -> list[Size]:
    """Return the size at which all frames together have so many pixels (Qwen3-VL). `fewest` is that of all frames."""
    share = max(min(most, QWEN3_PIXELS[0] // n), int(fewest * PIXELS_MARGIN))
    return [volume_size(n, height, width, p.token_size, fewest, share * n)]


def glm4v_sizes(p: ImageParameters, height: int, width: int, n: int, fewest: int, most: int) -> list[Size]:
    """Return the size at which all frames together have so many pixels (GLM-4.1V). `fewest` is that of all frames;
    `most` is 0 without a limit for each."""
    total = min(most * n, GLM4V_PIXELS[0]) if most else GLM4V_PIXELS[0]
    return [volume_size(n, height, width, p.token_size, fewest, total)]


def glm5v_sizes(p: ImageParameters, height: int, width: int, n: int, fewest: int, most: int) -> list[Size]:
    """Return the size of the content and that of its canvas, which has a number of pixels of all frames together
    (GLM-5-Next). `fewest` is that of a pair of them; `most` is 0 without a limit for each."""
    total = PAIR * GLM5V_TOKENS * p.token_size**2
    limits = CanvasLimits(p.token_size, PAIR * fewest, min(most * n, total) if most else total, n)
    return list(limits.sizes(height, width))


def smolvlm_sizes(p: ImageParameters, height: int, width: int, *_: int) -> list[Size]:
    """Return the size with the longest edge of a tile, then the size of a tile (SmolVLM2)."""
    return [longest_edge_size(height, width, p.image_size), (p.image_size, p.image_size)]


def tile_size(p: ImageParameters, *_: int) -> list[Size]:
    """Return the size of a tile (InternVL)."""
    return [(p.image_size, p.image_size)]


def volume_size(n: int, height: int, width: int, factor: int, fewest: int, most: int) -> Size:
    """Return the nearest size whose sides are multiples of `factor`, between two numbers of pixels of `n` frames. As
    GLM-4.1V and Qwen3-VL do it, an even number of frames counts for the comparison with these."""
    height, width = enlarge_to_token(height, width, factor)
    check_aspect_ratio(height, width)
    n = max(n, PAIR)
    new_height, new_width = round(height / factor) * factor, round(width / factor) * factor
    pixels = round(n / PAIR) * PAIR * new_height * new_width
    if pixels > most:
        shrink = math.sqrt(n * height * width / most)
        new_height = max(factor, math.floor(height / shrink / factor) * factor)
        new_width = max(factor, math.floor(width / shrink / factor) * factor)
    elif pixels < fewest:
        grow = math.sqrt(fewest / (n * height * width))
        new_height = math.ceil(height * grow / factor) * factor
        new_width = math.ceil(width * grow / factor) * factor
    return new_height, new_width

"""Decoding of images by Pillow."""

import warnings
from io import BytesIO

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image, ImageOps

from localinfer.errors import LocalInferError, UnsupportedError
from localinfer.escaping import printable

MAX_PIXELS = 1 << 27  # 134 million: 400 MB of RGB
MAX_ASPECT_RATIO = 200  # a strip has as many tokens as a large image, and reference processors refuse it
WIDE_INTEGERS = ("I", "I;16", "I;16B", "I;16L", "I;16N")

# Pillow warns about damage that decoding overcomes, and of large images, whose size is checked here
warnings.filterwarnings("ignore", module=r"PIL\.")


def decode(data: bytes, kind: str, name: str) -> NDArray[np.uint8]:
    """Return the pixels of an image of a format, uint8 (height, width, 3). Raises LocalInferError naming `name`."""
    if kind == "HEIF":
        _register_heif(name)
    try:
        with Image.open(BytesIO(data), formats=[kind]) as image:
            _check_size(image, name)
            pixels = np.array(_to_rgb(_upright(image)))
    except LocalInferError:
        raise
    except Image.DecompressionBombError:
        problem = f"the {kind} image is too large: at most {MAX_PIXELS} pixels are read"
        raise LocalInferError(f"{printable(name)}: {problem}") from None
    except MemoryError:
        raise LocalInferError(f"{printable(name)}: the {kind} image needs more memory than there is") from None
    except PIL.UnidentifiedImageError:
        raise LocalInferError(f"{printable(name)}: the {kind} image is damaged: its header cannot be read") from None
    except Exception as error:  # decoders of damaged files raise whatever they stumble over
        problem = printable(" ".join(str(error).split()), 160) or type(error).__name__
        raise LocalInferError(f"{printable(name)}: the {kind} image is damaged: {problem}") from None
    return pixels


def _register_heif(name: str) -> None:
    """Let Pillow read HEIC images. Raises UnsupportedError if the plug-in is not installed."""
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        problem = "HEIC images need the extra `heic`: pip install 'localinfer[heic]'"
        raise UnsupportedError(f"{printable(name)}: {problem}") from None
    register_heif_opener()


def _check_size(image: Image.Image, name: str) -> None:
    """Raise LocalInferError for an image without pixels, with too many, or of an extreme shape."""
    width, height = image.size
    size = f"{printable(name)}: an image of {width} x {height} pixels"
    if width < 1 or height < 1:
        raise LocalInferError(f"{size} has no pixels")
    if width * height > MAX_PIXELS:
        raise LocalInferError(f"{size} is too large: at most {MAX_PIXELS} pixels are read")
    if max(width, height) > MAX_ASPECT_RATIO * min(width, height):
        raise LocalInferError(f"{size}: the longer side may be at most {MAX_ASPECT_RATIO} times the shorter one")


def _upright(image: Image.Image) -> Image.Image:
    """Decode an image and turn it as its EXIF data say; damaged EXIF data say nothing."""
    image.load()
    try:
        return ImageOps.exif_transpose(image)
    except Exception:
        return image


def _to_rgb(image: Image.Image) -> Image.Image:
    """Return an image as RGB, on white where it is transparent."""
    if image.mode in WIDE_INTEGERS or image.mode == "F":
        return Image.fromarray(_to_bytes(np.asarray(image))).convert("RGB")
    if image.mode in ("LA", "PA", "RGBA", "La", "RGBa") or image.info.get("transparency") is not None:
        # Pillow converts premultiplied alpha only to RGBA
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, (255, 255, 255, 255)), image).convert("RGB")
    return image.convert("RGB")


def _to_bytes(values: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Return gray values as bytes: 16 bits lose the lower ones, and floating-point numbers go from 0 to 1 or to 255."""
    if values.dtype.kind == "f":
        levels = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=255.0, neginf=0.0)
        levels = levels * 255 if levels.max(initial=0) <= 1 else levels
    else:
        levels = np.asarray(values, np.float64)
        levels = np.floor(levels / 256) if levels.max(initial=0) > 255 else levels
    return np.clip(np.rint(levels), 0, 255).astype(np.uint8)

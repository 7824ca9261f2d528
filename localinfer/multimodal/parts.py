"""The parts of a message with images, sounds and videos, in every form in which programs and clients write them.

    {"type": "image", "image": ...}                               a path, bytes, a data: URL, pixels, or an `Image`
    {"type": "audio", "audio": ...}                               a path, bytes, a data: URL, or a `Sound`
    {"type": "image_url", "image_url": {"url": "data:..."}}       OpenAI; also a text in place of the object
    {"type": "input_image", "image_url": "data:..."}              OpenAI's responses
    {"type": "audio_url", "audio_url": {"url": "data:..."}}
    {"type": "input_audio", "input_audio": {"data": "...", "format": "wav"}}
    {"type": "video", "video": ...}                               a path, bytes, a data: URL, or a `Video`
    {"type": "video_url", "video_url": {"url": "data:..."}}       vLLM
    {"type": "input_video", "input_video": {"url": "data:..."}}   llama.cpp; also {"data": "..."} in base64

With "field", a part says by which name errors call it.
"""

from collections.abc import Callable, Mapping
from os import PathLike, fspath
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import LocalInferError, UnsupportedInputError, UsageError
from localinfer.multimodal.access import MAX_BYTES, MAX_VIDEO_BYTES, MediaAccess, decode_base64
from localinfer.multimodal.media import Image, Sound, Video

Media: TypeAlias = Image | Sound | Video
Content: TypeAlias = Media | bytes  # decoded, or the content of a file

KINDS = {  # type of a part -> what it is
    "image": "image", "image_url": "image", "input_image": "image",
    "audio": "audio", "audio_url": "audio", "input_audio": "audio",
    "video": "video", "video_url": "video", "input_video": "video",
}  # fmt: skip
ENCODED = ("input_audio", "input_video")  # parts with base64 that is no data: URL
MAX_SIDE = 1 << 15  # of an image that is given as pixels


def kind_of(media: Media) -> str:
    """Return "image", "audio" or "video"."""
    return "image" if isinstance(media, Image) else "audio" if isinstance(media, Sound) else "video"


def max_bytes_of(kind: str) -> int:
    """Return the largest size of a file of this kind."""
    return MAX_VIDEO_BYTES if kind == "video" else MAX_BYTES


def is_media_part(part: object) -> bool:
    """Return whether a part of a message is an image, a sound or a video."""
    return isinstance(part, Mapping) and isinstance(part.get("type"), str) and part["type"] in KINDS


def part_content(part: Mapping[str, object], where: str, access: MediaAccess) -> Content:
    """Return the image, sound or video of a part, or its content before decoding. Raises UsageError that names the
    field."""
    kind = str(part["type"])
    found = part.get(kind)
    if kind in ENCODED and isinstance(found, Mapping) and (kind == "input_audio" or "data" in found):
        data = found.get("data")
        if not isinstance(data, str):
            raise UsageError(f"{where}.{kind}.data: must be base64")
        return decode_base64(data, f"{where}.{kind}.data")
    name = "image_url" if kind == "input_image" else kind
    value, field = part.get(name), f"{where}.{name}"
    if name.endswith("_url") or name == "input_video":
        if isinstance(value, Mapping):
            value, field = value.get("url"), f"{field}.url"
        if not isinstance(value, str):
            raise UsageError(f"{field}: must be a URL, such as data:{KINDS[kind]}/...;base64,...")
        return access.read_url(value, field, max_bytes_of(KINDS[kind]))
    return source_content(value, field, KINDS[kind], access)


def source_content(value: object, field: str, kind: str, access: MediaAccess) -> Content:
    """Return the image, sound or video that a Python object is or names, or its content before decoding. The kind may
    be "" if only the content tells it.
    """
    if isinstance(value, Image | Sound | Video) and kind in ("", kind_of(value)):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str) and (value[:5].lower() == "data:" or "://" in value[:10]):
        return access.read_url(value, field, max_bytes_of(kind))
    if isinstance(value, str | PathLike):
        return access.read_file(str(fspath(value)), field, max_bytes_of(kind))
    if isinstance(value, np.ndarray) and kind != "video":
        is_sound = kind == "audio" or (not kind and value.ndim == 1)
        return sound_of_samples(value, field) if is_sound else image_of_pixels(value, field)
    raise UsageError(f"{field}: must be a path, bytes, a data: URL or {'a `Video`' if kind == 'video' else 'an array'}")


def image_of_pixels(pixels: NDArray[np.generic], field: str) -> Image:
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size:
        raise UsageError(f"{field}: must be uint8 (height, width, 3), not {pixels.dtype} {pixels.shape}")
    if max(pixels.shape[:2]) > MAX_SIDE:
        raise UsageError(f"{field}: has a side of more than {MAX_SIDE} pixels")
    return Image(np.ascontiguousarray(pixels, np.uint8))


def sound_of_samples(samples: NDArray[np.generic], field: str) -> Sound:
    if samples.dtype != np.float32 or samples.ndim != 1 or not samples.size:
        raise UsageError(f"{field}: must be float32 (n,), 16,000 samples per second, not {samples.dtype}")
    return Sound(np.ascontiguousarray(samples, np.float32))


def decode(content: bytes, kind: str, field: str, read_video: Callable[[bytes, str], Video]) -> Media:
    """Decode the content of a file; its kind may be "". Raises UsageError that begins with `field`."""
    from localinfer.multimodal.reading import (  # few prompts have media
        kind_of_content,
        read_image,
        read_media,
        read_sound,
    )

    readers: Mapping[str, Callable[[bytes, str], Media]]
    readers = {"image": read_image, "audio": read_sound, "video": read_video}
    read = readers.get(kind or kind_of_content(content), read_media)
    try:
        return read(content, field)
    except (UsageError, UnsupportedInputError):
        raise
    except LocalInferError as error:
        raise UsageError(str(error)) from None

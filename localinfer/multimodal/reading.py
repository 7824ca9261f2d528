"""Images and sounds are decoded from the bytes of a file, whatever its name says.

Files are untrusted. The size of an image is checked before its pixels are decoded, and a sound is decoded in blocks, so
a small file cannot take much memory. Whatever a decoder says about a damaged file becomes one line of LocalInferError.
"""

from localinfer.errors import LocalInferError
from localinfer.escaping import printable
from localinfer.multimodal.content_type import (
    READABLE_IMAGES,
    READABLE_SOUNDS,
    describe,
    image_format,
    sound_format,
)
from localinfer.multimodal.media import Image, Sound


def read_media(data: bytes, name: str) -> Image | Sound:
    """Decode an image or a sound, by its content. Raises LocalInferError."""
    if image_format(data):
        return read_image(data, name)
    if sound_format(data):
        return read_sound(data, name)
    problem = f"this is {describe(data)}, neither an image ({READABLE_IMAGES}) nor a sound ({READABLE_SOUNDS})"
    raise LocalInferError(f"{printable(name)}: {problem}")


def read_image(data: bytes, name: str) -> Image:
    """Decode an image: upright, on white where it is transparent. Raises LocalInferError."""
    from localinfer.multimodal import image_decoding  # imports Pillow

    kind = image_format(data)
    if not kind:
        what = f"a {sound_format(data)} sound" if sound_format(data) else describe(data)
        raise LocalInferError(f"{printable(name)}: this is {what}, not an image; {READABLE_IMAGES} can be read")
    return Image(image_decoding.decode(data, kind, name))


def read_sound(data: bytes, name: str) -> Sound:
    """Decode a sound: one channel, 16 kHz. Raises LocalInferError."""
    from localinfer.multimodal.sound_process import decode_in_child

    if not sound_format(data):
        what = f"a {image_format(data)} image" if image_format(data) else describe(data)
        raise LocalInferError(f"{printable(name)}: this is {what}, not a sound; {READABLE_SOUNDS} can be read")
    return Sound(decode_in_child(data, name))

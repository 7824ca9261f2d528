"""Images, sounds and videos are decoded from the bytes of a file, whatever its name says.

Files are untrusted. The size of an image is checked before its pixels are decoded, a sound is decoded in blocks, and a
video frame by frame, so a small file cannot take much memory. Whatever a decoder says about a damaged file becomes one
line of LocalInferError.
"""

from localinfer.errors import LocalInferError
from localinfer.escaping import printable
from localinfer.multimodal.content_type import (
    READABLE_IMAGES,
    READABLE_SOUNDS,
    READABLE_VIDEOS,
    describe,
    image_format,
    sound_format,
    video_container,
)
from localinfer.multimodal.media import Image, Sound, Video
from localinfer.multimodal.videos.video_process import Choose, Fit, OnFrame, decode_in_child


def kind_of_content(data: bytes) -> str:
    """Return "image", "audio" or "video", or "" for a file that cannot be read. A GIF is an image."""
    if image_format(data):
        return "image"
    return "audio" if sound_format(data) else "video" if video_container(data) else ""


def read_media(data: bytes, name: str) -> Image | Sound:
    """Decode an image or a sound, by its content. Raises LocalInferError."""
    kind = kind_of_content(data)
    if kind in ("image", "audio"):
        return read_image(data, name) if kind == "image" else read_sound(data, name)
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
    from localinfer.multimodal.sound_process import decode_in_child as decode_sound

    if not sound_format(data):
        what = f"a {image_format(data)} image" if image_format(data) else describe(data)
        raise LocalInferError(f"{printable(name)}: this is {what}, not a sound; {READABLE_SOUNDS} can be read")
    return Sound(decode_sound(data, name))


def read_video(data: bytes, name: str, choose: Choose, fit: Fit, on_frame: OnFrame | None = None) -> Video:
    """Decode frames of a video: see `video_process.decode_in_child`. Raises LocalInferError."""
    container = video_container(data)
    if not container:
        formats = {"image": image_format(data), "sound": sound_format(data)}
        what = next((f"a {found} {kind}" for kind, found in formats.items() if found), describe(data))
        raise LocalInferError(f"{printable(name)}: this is {what}, not a video; {READABLE_VIDEOS} can be read")
    return decode_in_child(data, container, name, choose, fit, on_frame)

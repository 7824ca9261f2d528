"""What a file is, from its first bytes: the kinds of images and sounds that are read, and others that are named."""

from typing import Final

IMAGE_SIGNATURES: Final = (
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"BM", "BMP"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"II+\0", "TIFF"),
    (b"MM\0+", "TIFF"),
)
SOUND_SIGNATURES: Final = (
    (b"fLaC", "FLAC"),
    (b"OggS", "OGG"),
    (b"ID3", "MP3"),
)
OTHER_SIGNATURES: Final = (
    (b"PK\x03\x04", "a ZIP archive"),
    (b"%PDF", "a PDF document"),
    (b"GGUF", "a GGUF file"),
    (b"\x1a\x45\xdf\xa3", "a Matroska or WebM file"),
    (b"\0\0\0\x0cJXL ", "a JPEG XL image"),
    (b"\xff\x0a", "a JPEG XL image"),
    (b"\0\0\0\x0cjP  ", "a JPEG 2000 image"),
    (b"8BPS", "a Photoshop document"),
)
HEIF_BRANDS: Final = (b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1")
READABLE_IMAGES = "JPEG, PNG, WebP, GIF, BMP, TIFF and HEIC"
READABLE_SOUNDS = "WAV, MP3, FLAC and OGG"


def image_format(data: bytes) -> str:
    """Return the format of an image that can be read, as Pillow names it, or ""."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    if data[4:8] == b"ftyp" and data[8:12] in HEIF_BRANDS:
        return "HEIF"
    return next((name for signature, name in IMAGE_SIGNATURES if data.startswith(signature)), "")


def sound_format(data: bytes) -> str:
    """Return the format of a sound that can be read, or ""."""
    if data[:4] in (b"RIFF", b"RIFX", b"RF64") and data[8:12] == b"WAVE":
        return "WAV"
    if len(data) > 3 and data[0] == 0xFF and data[1] & 0xE6 in (0xE2, 0xE4, 0xE6) and data[2] & 0xF0 != 0xF0:
        return "MP3"  # a frame header: 11 bits set, a layer, a valid bit rate
    return next((name for signature, name in SOUND_SIGNATURES if data.startswith(signature)), "")


def describe(data: bytes) -> str:
    """Return what a file is that is neither an image nor a sound that can be read, for an error message."""
    if not data:
        return "an empty file"
    if name := next((name for signature, name in OTHER_SIGNATURES if data.startswith(signature)), ""):
        return name
    if data[4:8] == b"ftyp":
        return "an AVIF image" if data[8:12] in (b"avif", b"avis") else "an MP4 or M4A file"
    head = data[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if head.startswith(b"<svg") or (head.startswith((b"<?xml", b"<!--", b"<!doctype svg")) and b"<svg" in head):
        return "an SVG drawing"
    if head.startswith((b"<!doctype html", b"<html")):
        return "a web page"
    return "a file of an unknown type"

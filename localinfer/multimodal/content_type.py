"""What a file is, from its first bytes: the images, sounds and videos that are read, and others that are named."""

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
VIDEO_SIGNATURES: Final = (  # and the names of FFmpeg's demuxers
    (b"\x1a\x45\xdf\xa3", "matroska"),
    (b"FLV\x01", "flv"),
    (b"\0\0\x01\xba", "mpeg"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
)
OTHER_SIGNATURES: Final = (
    (b"PK\x03\x04", "a ZIP archive"),
    (b"%PDF", "a PDF document"),
    (b"GGUF", "a GGUF file"),
    (b"\0\0\0\x0cJXL ", "a JPEG XL image"),
    (b"\xff\x0a", "a JPEG XL image"),
    (b"\0\0\0\x0cjP  ", "a JPEG 2000 image"),
    (b"8BPS", "a Photoshop document"),
)
HEIF_BRANDS: Final = (b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1")
STILL_BRANDS: Final = (*HEIF_BRANDS, b"avif", b"avis")
SOUND_BRANDS: Final = (b"M4A ", b"M4B ")
QUICKTIME_ATOMS: Final = (b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot")  # of files without `ftyp`
TRANSPORT_PACKET, SYNC = 188, b"\x47"  # of MPEG transport streams
READABLE_IMAGES = "JPEG, PNG, WebP, GIF, BMP, TIFF and HEIC"
READABLE_SOUNDS = "WAV, MP3, FLAC and OGG"
VIDEO = "a video"
READABLE_VIDEOS = "MP4, MOV, WebM, MKV, AVI, MPEG, FLV and GIF"


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


def video_container(data: bytes) -> str:
    """Return the container of a video that can be read, as FFmpeg names it, or ""."""
    if data[4:8] == b"ftyp":
        return "" if data[8:12] in (*STILL_BRANDS, *SOUND_BRANDS) else "mov"
    if data[4:8] in QUICKTIME_ATOMS:
        return "mov"
    if data[:4] == b"RIFF" and data[8:12] == b"AVI ":
        return "avi"
    if name := next((name for signature, name in VIDEO_SIGNATURES if data.startswith(signature)), ""):
        return name
    return "mpegts" if data[: 3 * TRANSPORT_PACKET : TRANSPORT_PACKET] == SYNC * 3 else ""


def describe(data: bytes) -> str:
    """Return what a file is that is neither an image, a sound nor a video that can be read, for an error message."""
    if not data:
        return "an empty file"
    if name := next((name for signature, name in OTHER_SIGNATURES if data.startswith(signature)), ""):
        return name
    if data[4:8] == b"ftyp":
        return "an AVIF image" if data[8:12] in STILL_BRANDS else "an M4A file" if data[8:12] in SOUND_BRANDS else VIDEO
    if video_container(data):
        return VIDEO
    head = data[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if head.startswith(b"<svg") or (head.startswith((b"<?xml", b"<!--", b"<!doctype svg")) and b"<svg" in head):
        return "an SVG drawing"
    if head.startswith((b"<!doctype html", b"<html")):
        return "a web page"
    return "a file of an unknown type"

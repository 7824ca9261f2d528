"""Images and sounds of every format become pixels and samples; damaged and hostile files one line of an error."""

import struct
import subprocess
import sys
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray
from PIL import Image as PillowImage

from localinfer.errors import LocalInferError, UnsupportedError
from localinfer.multimodal import image_decoding, sound_decoding
from localinfer.multimodal.media import Image, Sound
from localinfer.multimodal.reading import read_image, read_media, read_sound

RED, WHITE = (255, 0, 0), (255, 255, 255)


def encoded(image: PillowImage.Image, kind: str, **options: object) -> bytes:
    """Return an image as a file."""
    stream = BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def gradient(width: int = 40, height: int = 30) -> PillowImage.Image:
    """Return an image in which every pixel differs."""
    y, x = np.mgrid[:height, :width]
    return PillowImage.fromarray(np.stack((x * 6, y * 8, (x + y) * 3), axis=2).astype(np.uint8))


def png(width: int, height: int, data: bytes = b"") -> bytes:
    """Return a PNG file whose header states a size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(data)), (b"IEND", b""))
    body = b"".join(
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body


def sound_file(samples: NDArray[np.float32], rate: int, kind: str, subtype: str | None = None) -> bytes:
    """Return samples as a file."""
    stream = BytesIO()
    soundfile.write(stream, samples, rate, format=kind, subtype=subtype)
    return stream.getvalue()


def tone(rate: int, seconds: float = 0.5, channels: int = 1) -> NDArray[np.float32]:
    """Return a tone of 440 Hz, (frames, channels)."""
    wave = 0.5 * np.sin(2 * np.pi * 440 * np.arange(round(rate * seconds)) / rate)
    return np.repeat(wave[:, None], channels, axis=1).astype(np.float32)


def pixels(data: bytes) -> NDArray[np.uint8]:
    return read_image(data, "file").pixels


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "GIF", "JPEG", "WEBP"])
def test_formats(kind: str) -> None:
    found = pixels(encoded(gradient(), kind, **({"lossless": True} if kind == "WEBP" else {})))
    assert found.shape == (30, 40, 3)
    assert found.dtype == np.uint8
    tolerance = {"JPEG": 30, "GIF": 40}.get(kind, 0)  # lossy, and of 256 colors
    assert np.abs(found.astype(int) - np.asarray(gradient()).astype(int)).max() <= tolerance


MODES = [("1", "PNG"), ("L", "PNG"), ("P", "PNG"), ("CMYK", "JPEG"), ("YCbCr", "JPEG")]


@pytest.mark.parametrize(("mode", "kind"), MODES)
def test_modes(mode: str, kind: str) -> None:
    image = PillowImage.new("RGB", (5, 4), (250, 250, 250) if mode == "L" else WHITE).convert(mode)
    assert np.abs(pixels(encoded(image, kind)).astype(int) - (250 if mode == "L" else 255)).max() <= 1


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.float32])
def test_wide_gray_values_keep_their_brightness(dtype: type[np.generic]) -> None:
    full = {np.uint16: 65535, np.int32: 65535, np.float32: 1.0}[dtype]
    values = (np.array([[0, 0.5, 1]]) * full).astype(dtype)
    found = pixels(encoded(PillowImage.fromarray(values), "TIFF"))
    assert np.abs(found[0, :, 0].astype(int) - (0, 127, 255)).max() <= 1


def test_values_that_are_not_numbers_become_black() -> None:
    values = np.array([[np.nan, -np.inf, np.inf, -5.0, 300.0]], np.float32)
    assert pixels(encoded(PillowImage.fromarray(values), "TIFF"))[0, :, 0].tolist() == [0, 0, 255, 0, 255]


def test_transparent_pixels_are_white() -> None:
    image = PillowImage.new("RGBA", (2, 1), (*RED, 255))
    image.putpixel((1, 0), (0, 0, 0, 0))
    assert pixels(encoded(image, "PNG")).tolist() == [[list(RED), list(WHITE)]]
    palette = PillowImage.new("P", (2, 1))
    palette.putpalette([*RED, 0, 0, 0])
    palette.putpixel((1, 0), 1)
    assert pixels(encoded(palette, "PNG", transparency=1)).tolist() == [[list(RED), list(WHITE)]]


@pytest.mark.parametrize(("orientation", "corner"), [(1, (0, 0)), (3, (29, 39)), (6, (0, 29)), (8, (39, 0))])
def test_exif_orientation(orientation: int, corner: tuple[int, int]) -> None:
    image = PillowImage.new("RGB", (40, 30))
    image.putpixel((0, 0), WHITE)
    exif = PillowImage.Exif()
    exif[0x0112] = orientation
    found = pixels(encoded(image, "PNG", exif=exif))
    assert found.shape[:2] == ((30, 40) if orientation < 5 else (40, 30))
    assert found[corner].tolist() == list(WHITE)


def test_damaged_exif_data_change_nothing() -> None:
    assert pixels(encoded(gradient(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")).shape == (30, 40, 3)


def test_first_frame_of_an_animation() -> None:
    frames = [PillowImage.new("RGB", (8, 6), color) for color in (RED, WHITE)]
    for kind in ("GIF", "WEBP", "TIFF"):
        found = pixels(encoded(frames[0], kind, save_all=True, append_images=frames[1:]))
        assert found.shape == (6, 8, 3)
        assert np.abs(found[0, 0].astype(int) - RED).max() <= 2


def test_one_pixel() -> None:
    assert pixels(encoded(PillowImage.new("RGB", (1, 1), RED), "PNG")).tolist() == [[list(RED)]]


def test_heic_needs_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(UnsupportedError, match=r"^photo\.heic: HEIC images need the extra `heic`: pip install"):
        read_image(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "photo.heic")


def test_heic() -> None:
    heif = pytest.importorskip("pillow_heif")
    stream = BytesIO()
    heif.from_pillow(PillowImage.new("RGB", (64, 48), RED)).save(stream, quality=90)
    found = pixels(stream.getvalue())
    assert found.shape == (48, 64, 3)
    assert np.abs(found[20, 20].astype(int) - RED).max() < 12


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "this is an empty file"),
        (b"PK\x03\x04" + bytes(100), "this is a ZIP archive"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "this is an SVG drawing"),
        (b"\xef\xbb\xbf<?xml version='1.0'?>\n<svg/>", "this is an SVG drawing"),
        (b"%PDF-1.7", "this is a PDF document"),
        (b"\0\0\0\x1cftypM4A ", "this is an M4A file"),
        (b"<!DOCTYPE html>", "this is a web page"),
        (b"hello", "this is a file of an unknown type"),
        (png(0, 0), "PNG image is damaged|has no pixels"),
        (png(0, 7), "PNG image is damaged|has no pixels"),
        (png(100_000, 100_000), "too large"),
        (png(12_000, 12_000), "12000 x 12000 pixels is too large: at most 134217728 pixels are read"),
        (png(30_000, 1), "30000 x 1 pixels: the longer side may be at most 200 times the shorter one"),
        (encoded(gradient(), "PNG")[:60], "the PNG image is damaged"),
        (encoded(gradient(400, 300), "JPEG")[:900], "the JPEG image is damaged"),
        (encoded(gradient(), "JPEG")[:20], "the JPEG image is damaged"),
        (encoded(gradient(), "WEBP")[:40], "the WEBP image is damaged"),
        (b"BM" + bytes(60), "the BMP image is damaged"),
        (b"II*\0\xff\xff\xff\xff", "the TIFF image is damaged"),
        (b"GIF89a\xff\xff\xff\xff\0\0\0", "the GIF image is damaged|too large"),
    ],
)
def test_refused_images(data: bytes, problem: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(LocalInferError, match=problem) as caught:
        read_media(data, "a\x1b.png")
    assert str(caught.value).startswith("a\\x1b.png: ")
    assert len(str(caught.value).splitlines()) == 1
    assert capfd.readouterr() == ("", "")


def test_an_image_larger_than_memory_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(image: object) -> object:
        raise MemoryError

    monkeypatch.setattr(image_decoding, "_to_rgb", fail)
    with pytest.raises(LocalInferError, match="the PNG image needs more memory than there is"):
        read_image(encoded(gradient(), "PNG"), "x")


@pytest.mark.parametrize(
    ("kind", "subtype", "rate"),
    [
        ("WAV", "PCM_16", 16_000), ("WAV", "PCM_24", 44_100), ("WAV", "FLOAT", 8_000), ("WAV", "PCM_U8", 22_050),
        ("MP3", None, 44_100), ("FLAC", None, 48_000), ("OGG", "VORBIS", 44_100), ("OGG", "OPUS", 48_000),
    ],
)  # fmt: skip
@pytest.mark.parametrize("channels", [1, 2])
def test_sounds(kind: str, subtype: str | None, rate: int, channels: int) -> None:
    found = read_sound(sound_file(tone(rate, channels=channels), rate, kind, subtype), "x").samples
    assert found.dtype == np.float32
    assert abs(len(found) - 8000) < 1300  # compressed formats add or remove parts of a block
    spectrum = np.abs(np.fft.rfft(found * np.hanning(len(found)), 16_000))
    assert abs(int(spectrum.argmax()) - 440) <= 2
    assert abs(np.abs(found[1000:6000]).max() - 0.5) < 0.05


def test_channels_are_averaged_and_values_limited() -> None:
    samples = np.array([[1.0, 0.0], [3.0, 2.0], [np.nan, 0.0], [-9.0, -9.0]], np.float32)
    found = read_sound(sound_file(samples, 16_000, "WAV", "FLOAT"), "x").samples
    assert found.tolist() == [0.5, 1.0, 0.0, -1.0]


def test_media_by_content() -> None:
    assert isinstance(read_media(encoded(gradient(), "PNG"), "x.wav"), Image)
    assert isinstance(read_media(sound_file(tone(16_000), 16_000, "WAV"), "x.png"), Sound)
    with pytest.raises(LocalInferError, match=r"^x: this is a WAV sound, not an image; JPEG, PNG, .* can be read$"):
        read_image(sound_file(tone(16_000), 16_000, "WAV"), "x")
    with pytest.raises(LocalInferError, match=r"^x: this is a PNG image, not a sound; WAV, MP3, .* can be read$"):
        read_sound(encoded(gradient(), "PNG"), "x")


def wav_header(frames: int, rate: int = 16_000, channels: int = 1) -> bytes:
    """Return the header of a WAV file with 16 bits that states a length, and ten samples."""
    size = min(frames * 2 * channels, 2**32 - 100)
    block = channels * 2
    head = struct.pack("<4sI4s4sIHHIIHH", b"RIFF", size + 36, b"WAVE", b"fmt ", 16, 1, channels, rate,
                       min(rate * block, 2**32 - 1), block, 16)  # fmt: skip
    return head + struct.pack("<4sI", b"data", size) + bytes(20)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (wav_header(0)[:44], "the sound has no samples"),
        (wav_header(10)[:30], "the sound is damaged"),
        (wav_header(10, rate=3), "a sample rate of 3 Hz; it must be from 1000 to 768000 Hz"),
        (wav_header(10, rate=2**31 - 1), "a sample rate of 2147483647 Hz|the sound is damaged"),
        (wav_header(10, channels=0), "the sound is damaged"),
        (b"ID3" + b"PK\x03\x04" * 100, "the sound is damaged"),
        (b"\xff\xfb\x90\x00" + b"PK\x03\x04" * 100, "the sound is damaged"),
        (b"fLaC" + bytes(40), "the sound is damaged"),
        (b"OggS" + bytes(40), "the sound is damaged"),
    ],
)
def test_refused_sounds(data: bytes, problem: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(LocalInferError, match=problem) as caught:
        read_media(data, "talk.mp3")
    assert str(caught.value).startswith("talk.mp3: ")
    assert len(str(caught.value).splitlines()) == 1
    assert capfd.readouterr() == ("", "")


def test_a_stated_length_is_not_believed() -> None:
    hundred_hours = wav_header(100 * 3600 * 16_000)
    assert len(read_sound(hundred_hours, "x").samples) == 10


def test_damaged_mp3_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    whole = sound_file(tone(44_100), 44_100, "MP3")
    assert 0 < len(read_sound(whole[:3000], "x").samples) < 8000
    assert capfd.readouterr() == ("", "")


def test_a_long_sound_is_refused_before_it_fills_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sound_decoding, "MAX_SECONDS", 120)
    silence = sound_file(np.zeros((16_000 * 125, 1), np.float32), 16_000, "FLAC")
    with pytest.raises(LocalInferError, match=r"^x: the sound is longer than 2 minutes$"):
        sound_decoding.decode(silence, "x")


def test_a_decoder_that_dies_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localinfer.multimodal.sound_process.CODE", "import os; os.abort()")
    with pytest.raises(LocalInferError, match=r"^x: the sound is damaged: its decoder fails$"):
        read_sound(wav_header(10), "x")


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory from /proc")
def test_a_bomb_takes_no_memory(tmp_path: Path) -> None:
    """The header of an image is read in a process of little memory."""
    bomb = tmp_path / "bomb.png"
    bomb.write_bytes(png(65_000, 65_000, bytes(10_000_000)))
    code = (
        "import re, sys; from pathlib import Path; from localinfer.multimodal.reading import read_media\n"
        "data = Path(sys.argv[1]).read_bytes()\n"
        "try: read_media(data, 'bomb')\n"
        "except Exception as error: print(error)\n"
        "print(re.search('VmHWM:\\s*(\\d+) kB', Path('/proc/self/status').read_text())[1])"
    )
    done = subprocess.run([sys.executable, "-c", code, bomb], capture_output=True, text=True)
    message, peak = done.stdout.splitlines()
    assert "too large" in message
    assert int(peak) < 150_000
    assert done.stderr == ""

"""Fuzzing of images and sounds: mutants are decoded, and images that still can be are preprocessed."""

from collections.abc import Sequence
from io import BytesIO
from random import Random

import numpy as np
import soundfile
from fuzz.files import Target, change_numbers
from fuzz.mutations import change_bytes
from made_images import photograph
from made_sounds import chirp
from PIL import Image as PillowImage

from localinfer.errors import LocalInferError
from localinfer.multimodal import image_decoding, sound_decoding
from localinfer.multimodal.content_type import sound_format
from localinfer.multimodal.media import Image
from localinfer.multimodal.preprocessing.idefics3 import Idefics3Tiles
from localinfer.multimodal.preprocessing.image_parameters import ImageParameters
from localinfer.multimodal.preprocessing.smart_resize import SmartResize
from localinfer.multimodal.reading import read_image, read_media
from localinfer.multimodal.sounds.mel import log_mel

HALF = (0.5, 0.5, 0.5)
PROCESSORS = (
    SmartResize(ImageParameters(0, 14, HALF, HALF, merge=2, min_pixels=3136, max_pixels=100_352)),
    Idefics3Tiles(ImageParameters(96, 16, HALF, HALF, merge=2, filter="lanczos", longest_edge=192)),
)
MODES = {"PNG": ("RGB", "RGBA", "P", "L", "1", "I;16"), "JPEG": ("RGB", "CMYK", "L"), "WEBP": ("RGB", "RGBA"),
         "GIF": ("P",), "BMP": ("RGB", "P"), "TIFF": ("RGB", "I;16", "F")}  # fmt: skip
FUZZED_PIXELS = 1 << 24  # instead of the real limit, so that "much memory" is noticed
BIG_ENDIAN = b"\0\0\0\1", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\x80\0", b"\0\0\0\0"


def change_big_endian(content: bytes, choose: Random) -> bytes:
    """Overwrite four bytes, most likely in the header, with a limit of a big-endian number."""
    at = choose.randrange(max(1, min(len(content), 64 if choose.random() < 0.7 else len(content))))
    return content[:at] + choose.choice(BIG_ENDIAN) + content[at + 4 :]


class ImageFile(Target):
    mutations = (change_bytes, change_numbers, change_big_endian)

    def make(self) -> Sequence[bytes]:
        image = PillowImage.fromarray(photograph(31, 45, np.random.default_rng(1)))
        exif = PillowImage.Exif()
        exif[0x0112] = 6
        files = [self.encoded(image.convert(mode), kind, exif) for kind, modes in MODES.items() for mode in modes]
        frames = [image.rotate(angle) for angle in (90, 180)]
        for kind in ("GIF", "WEBP", "PNG", "TIFF"):
            stream = BytesIO()
            image.save(stream, kind, save_all=True, append_images=frames)
            files.append(stream.getvalue())
        return files

    @staticmethod
    def encoded(image: PillowImage.Image, kind: str, exif: PillowImage.Exif) -> bytes:
        stream = BytesIO()
        image.save(stream, kind, **({"exif": exif} if kind in ("JPEG", "PNG", "WEBP") else {}))
        return stream.getvalue()

    def run(self, content: bytes, choose: Random) -> None:
        image_decoding.MAX_PIXELS = FUZZED_PIXELS
        read = choose.choice((read_image, read_media))
        image = read(content, "mutant")
        assert isinstance(image, Image)
        assert image.pixels.dtype == np.uint8
        assert image.pixels.ndim == 3
        for process in PROCESSORS:
            inputs = process(image)
            assert [each.grid for each in inputs] == process.grids(*image.pixels.shape[:2])
            assert all(np.isfinite(each.patches).all() for each in inputs)


class SoundFile(Target):
    """Decoded in this process, which the fork server limits as `sound_process` limits its child."""

    mutations = (change_bytes, change_numbers, change_big_endian)

    def make(self) -> Sequence[bytes]:
        kinds = (("WAV", "PCM_16"), ("WAV", "PCM_24"), ("WAV", "FLOAT"), ("WAV", "IMA_ADPCM"), ("WAV", "ULAW"),
                 ("MP3", None), ("FLAC", None), ("OGG", "VORBIS"), ("OGG", "OPUS"))  # fmt: skip
        samples = np.stack([chirp(), -chirp()], axis=1)
        files = []
        for kind, subtype in kinds:
            stream = BytesIO()
            soundfile.write(stream, samples, 16_000, format=kind, subtype=subtype)
            files.append(stream.getvalue())
        return files

    def run(self, content: bytes, choose: Random) -> None:
        if not sound_format(content):
            raise LocalInferError("not a sound")
        samples = sound_decoding.decode(content, "mutant")
        assert samples.dtype == np.float32
        assert np.isfinite(samples).all()
        assert np.abs(samples).max() <= 1
        assert np.isfinite(log_mel(samples[:100_000], 80)).all()

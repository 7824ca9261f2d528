"""What the encoders of a file are verified with: an image and a sound, and the graphs that they need."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from localinfer.evaluation.verification.host_checks import spectrogram_checks
from localinfer.evaluation.verification.operation_check import OperationCheck
from localinfer.graph.ops.buffers import Buffer
from localinfer.multimodal.encoder_graph.encoder_builder import EncoderBuilder
from localinfer.multimodal.encoder_graph.encoder_tensors import Floats
from localinfer.multimodal.media import SAMPLE_RATE, Image, Sound
from localinfer.multimodal.projector import make_processor
from localinfer.multimodal.projector_file import ProjectorFile
from localinfer.multimodal.sounds.encoders import conformer
from localinfer.multimodal.sounds.sound_encoder import SoundEncoder
from localinfer.options import Options
from localinfer.speech_recognition.encoder import CONTEXT_ROWS, windows
from localinfer.speech_recognition.recognition_file import RecognitionFile

IMAGE_SIZE = 168, 224  # height and width in pixels
SECONDS, LOWEST, HIGHEST = 2.5, 100.0, 4000.0  # of a tone that rises, in Hz
CHUNK_ROWS = 700  # of a window of a speech recognition model: 56 s


@dataclass(frozen=True, eq=False)
class EncoderInput:
    """What an encoder reads at once: its patches or frames, and a description. `build` returns the graph for it and the
    output rows. `checks` are those of what the host has computed."""

    description: str
    build: Callable[[], tuple[EncoderBuilder, Buffer]]
    patches: Floats
    checks: Sequence[OperationCheck] = ()


def generate_image() -> Image:
    """Return an image with smooth colors, edges and noise, always the same."""
    height, width = IMAGE_SIZE
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x * y / 900), np.sign(np.sin(x / 17) * np.sin(y / 11)), (x + y) / (height + width) * 2 - 1]
    noise = np.random.default_rng(0).uniform(-1, 1, (height, width, 3))
    return Image((127.5 + 95 * np.stack(waves, axis=2) + 30 * noise).clip(0, 255).astype(np.uint8))


def generate_sound() -> Sound:
    """Return a tone that rises, with pauses and noise, always the same."""
    t = np.arange(round(SECONDS * SAMPLE_RATE)) / SAMPLE_RATE
    turns = LOWEST * t + (HIGHEST - LOWEST) / (2 * SECONDS) * t**2
    noise = np.random.default_rng(0).uniform(-1, 1, len(t))
    return Sound((0.5 * np.sin(2 * np.pi * turns) * (np.sin(8 * t) > -0.5) + 0.02 * noise).astype(np.float32))


def image_inputs(file: ProjectorFile, image: Image, options: Options) -> Iterator[EncoderInput]:
    """Yield the inputs of an image, of several tiles of one size only the first."""
    height, width = image.pixels.shape[:2]
    grids = set[tuple[int, int]]()
    for each in make_processor(file.f, options)(image):
        if each.grid not in grids:
            grids.add(each.grid)
            rows, columns = each.grid
            description = f"image of {width} x {height} pixels, {each.name}: {columns} x {rows} patches"
            yield EncoderInput(description, partial(file.build, each.grid, options), each.patches)


def sound_inputs(encoder: SoundEncoder, sound: Sound, options: Options) -> Iterator[EncoderInput]:
    """Yield the inputs of a sound, of several windows of one length only the first."""
    processor = encoder.make_processor()
    features = processor(sound).features
    checks = [*spectrogram_checks(encoder.make_processor, features, sound)]
    lengths = dict[int, int]()
    for first, n_frames in encoder.framing.windows(processor.n_frames(len(sound.samples))):
        lengths.setdefault(n_frames, first)
    for n_frames, first in lengths.items():
        seen = features[first : first + encoder.framing.window]
        prepared = encoder.family.prepare(seen, encoder.framing.lengths(n_frames))
        build = partial(encoder.build, n_frames, options)
        yield EncoderInput(describe_sound(sound, n_frames), build, prepared, checks)
        checks = []


def recognition_inputs(file: RecognitionFile, sound: Sound, options: Options) -> Iterator[EncoderInput]:
    """Yield the input of a sound for the encoder of a speech recognition model: the first window."""
    features = file.make_processor()(sound).features
    window = windows(len(features), CHUNK_ROWS, CONTEXT_ROWS)[0]
    prepared = conformer.prepare(features[: window.last], [window.n_frames])
    checks = [*spectrogram_checks(file.make_processor, features, sound)]
    build = partial(file.build_encoder, window.n_frames, options)
    yield EncoderInput(describe_sound(sound, window.n_frames), build, prepared, checks)


def describe_sound(sound: Sound, n_frames: int) -> str:
    """Return what is encoded at once, in words."""
    return f"sound of {len(sound.samples) / SAMPLE_RATE:.1f} s: {n_frames} frames"


def projector_inputs(
    file: ProjectorFile, image: Image | None, sound: Sound | None, options: Options
) -> Sequence[EncoderInput]:
    """Return the inputs of all encoders of a projector file, of generated ones in place of those that are not given.
    Raises UnsupportedError for an image or a sound that the file does not encode."""
    inputs = list[EncoderInput]()
    if file.encoder or image:
        assert file.image_encoder
        inputs += image_inputs(file, image or generate_image(), options)
    if file.sound or sound:
        inputs += sound_inputs(file.sound_encoder, sound or generate_sound(), options)
    return inputs

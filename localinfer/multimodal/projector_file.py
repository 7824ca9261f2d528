"""A projector file: a GGUF with the encoders of a multimodal model, as llama.cpp writes it (`mmproj`).

The file is untrusted: building the graph checks every tensor and key that it uses by name, and refuses those that it
does not use. A file that does not belong to the language model is refused, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from localinfer.errors import LocalInferError, UnsupportedError, UsageError
from localinfer.escaping import printable
from localinfer.gguf.reader import GGUF, Tensor, open_gguf
from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.properties.hyperparameters import Hyperparameters
from localinfer.graph.properties.rope import SECTIONS_KEY
from localinfer.graph.recording.model_graph import HookedGraph
from localinfer.graph.recording.points import Point
from localinfer.multimodal.encoder_graph.encoder_builder import EncoderBuilder, read_class_rows
from localinfer.multimodal.encoder_graph.encoder_model import (
    IGNORE_DAMAGED_WEIGHTS,
    check_lengths,
    encoder_model,
    read_heads,
    with_a_layer,
)
from localinfer.multimodal.encoder_graph.encoder_tensors import EncoderTensors
from localinfer.multimodal.encoders import Encoder, find_encoder, known
from localinfer.multimodal.preprocessing.image_parameters import MAX_IMAGE_SIZE, MAX_PATCH_SIZE
from localinfer.multimodal.preprocessing.processors import make_image_processor
from localinfer.multimodal.sounds.sound_encoder import SoundEncoder, open_sound_encoder
from localinfer.multimodal.sounds.sound_tensors import sound_tensors
from localinfer.options import Options

ARCHITECTURE, PREFIX = "clip", "clip.vision"
INCOMPLETE_WITHOUT = {"gemma3na": "a.conv1d.0.norm.weight"}  # encoders of sounds, by a tensor
MAX_PATCHES = 1 << 17
ALL_POINTS = HookedGraph(None)
USED_BY_PREPROCESSORS = (
    "image_mean", "image_std", "image_min_pixels", "image_max_pixels", "preproc_image_size", "preproc_min_tiles",
    "preproc_max_tiles", "image_grid_pinpoints", "image_crop_resolution", "image_aspect_ratio",
    "image_split_resolution", "mm_projector_type",
)  # fmt: skip
OTHER_KEYS = (
    "clip.has_vision_encoder", "clip.has_text_encoder", "clip.has_audio_encoder", "clip.has_llava_projector",
    "clip.projector_type", "clip.use_gelu", "clip.use_silu", "clip.has_minicpmv_projector", "clip.minicpmv_version",
    "clip.minicpmv_query_num",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class ProjectorFile:
    """An open projector file that fits its language model. `encoder` is that of images, `sound` that of sounds; None if
    the file has none. `embedding_length` is that of the language model, 0 if the file was opened without one.
    `deepstack` is the number of layers of the language model to which it adds rows, in which the rows of an image
    attend to each other if it is `bidirectional`."""

    f: GGUF
    projector_type: str
    encoder: Encoder | None
    embedding_length: int
    deepstack: int = 0
    bidirectional: bool = False
    sound: SoundEncoder | None = None
    converted: dict[str, Tensor] = field(default_factory=dict)  # tensors that the host has converted

    @property
    def image_encoder(self) -> Encoder:
        """The encoder of images. Raises UnsupportedError if there is none."""
        if self.encoder is None:
            raise self.f.error("clip.projector_type", f"{self.projector_type} does not encode images", UnsupportedError)
        return self.encoder

    @property
    def sound_encoder(self) -> SoundEncoder:
        """The encoder of sounds. Raises UnsupportedError if there is none."""
        if self.sound is None:
            raise self.f.error("clip.projector_type", f"{self.projector_type} does not encode sounds", UnsupportedError)
        return self.sound

    @IGNORE_DAMAGED_WEIGHTS
    def build(
        self, grid: tuple[int, int], options: Options, n_frames: int = 1, hooks: HookedGraph | None = None
    ) -> tuple[EncoderBuilder, Buffer]:
        """Build and check the graph for images with this grid of patches, or for as many frames of a video. Nothing is
        allocated or compiled. Return the builder and the output rows."""
        f = self.f if self.image_encoder.has_layers else with_a_layer(self.f, PREFIX)
        hparams = Hyperparameters(f, PREFIX)
        used = "image_size", "feed_forward_length", "projection_dim", "projector_type"
        hparams.accept(*USED_BY_PREPROCESSORS, *used)
        tensors = EncoderTensors(f, "v.blk.", hparams.count("block_count"), self.converted)
        encoder, length = self.image_encoder, hparams.count("embedding_length")
        class_rows = read_class_rows(tensors, length) if encoder.class_rows else np.zeros((0, length), np.float32)
        n = encoder.n_rows(f, grid, grid[0] * grid[1] + len(class_rows))
        if n > MAX_PATCHES:
            raise LocalInferError(f"an image of {grid[0]} x {grid[1]} patches is too large; the limit is {MAX_PATCHES}")
        model = encoder_model(f, hparams, tensors, n, options, hooks)
        g = EncoderBuilder(model, grid, read_heads(model), n_frames, class_rows)
        output = encoder.build(g)
        g.point(output, "v.output")
        if f.get("clip.has_audio_encoder", bool, False):
            tensors.accept(*sound_tensors(f))
        tensors.reject_unused()
        hparams.reject_unused()
        check_lengths(f, model.graph)
        if self.embedding_length and output.n != self.embedding_length * (1 + self.deepstack):
            what = f"makes rows of {output.n} values; the model needs {self.embedding_length * (1 + self.deepstack)}"
            raise f.error("clip.projector_type", f"{self.projector_type} {what}")
        return g, output


def open_projector(path: str | Path, model: GGUF | None) -> ProjectorFile:
    """Open the projector file of a language model, or of any if it is None.

    Raises LocalInferError for an invalid file, UnsupportedError for an encoder that cannot run, UsageError for a file
    that does not belong to the model.
    """
    f = open_gguf(path)
    architecture = f.get("general.architecture", str)
    if architecture != ARCHITECTURE:
        what = f"is {printable(architecture, 80)!r}; the file of a projector has {ARCHITECTURE!r}"
        raise f.error("general.architecture", what, UsageError)
    has_image, has_sound = (f.get(f"clip.has_{kind}_encoder", bool, False) for kind in ("vision", "audio"))
    if not has_image and not has_sound:
        raise f.error("clip.has_vision_encoder", "is false, and so is clip.has_audio_encoder", UnsupportedError)
    reject_unknown_keys(f)
    needed = INCOMPLETE_WITHOUT.get(f.get("clip.audio.projector_type", str, ""), "")
    is_incomplete = has_image and needed and needed not in f.tensors
    sound = open_sound_encoder(f, model) if has_sound and not is_incomplete else None
    if not has_image:
        assert sound is not None
        return ProjectorFile(f, sound.projector_type, None, sound.embedding_length, sound=sound)
    name, encoder = read_encoder(f)
    if model is None:
        file = ProjectorFile(f, name, encoder, 0, sound=sound)
    else:
        length, deepstack = check_pair(f, name, encoder, model)
        file = ProjectorFile(f, name, encoder, length, deepstack, encoder.is_bidirectional(model), sound)
    file.build(smallest_grid(f, encoder), Options())
    return file


def projector_points(file: ProjectorFile, options: Options) -> Mapping[str, Point]:
    """Return the points of the encoders of a file by name, of images before those of sounds."""
    points = dict[str, Point]()
    if file.encoder:
        points.update(file.build(smallest_grid(file.f, file.encoder), options, hooks=ALL_POINTS)[0].model.points.points)
    if file.sound:
        points.update(file.sound.build(file.sound.some_frames, options, ALL_POINTS)[0].model.points.points)
    return points


def read_encoder(f: GGUF) -> tuple[str, Encoder]:
    """Return the projector type and its encoder of images."""
    key = "clip.projector_type" if "clip.projector_type" in f.metadata else "clip.vision.projector_type"
    name = f.get(key, str)
    encoder = find_encoder(name)
    if encoder is None:
        what = f"{printable(name, 80)!r} is not supported (supported: {', '.join(known())})"
        raise f.error(key, what, UnsupportedError)
    return name, encoder


def check_pair(f: GGUF, name: str, encoder: Encoder, model: GGUF) -> tuple[int, int]:
    """Return the embedding length of the language model, and its number of DeepStack layers. Raises UsageError if the
    projector is that of another model."""
    architecture = model.get("general.architecture", str)
    if encoder.architectures and architecture not in encoder.architectures:
        what = f"{name} belongs to {' or '.join(encoder.architectures)} models, not to {printable(architecture, 80)}"
        raise f.error("clip.projector_type", what, UsageError)
    length = model.get(f"{architecture}.embedding_length", int)
    deepstack = model.get(f"{architecture}.n_deepstack_layers", int, 0)
    if encoder.grid_positions and f"{architecture}.{SECTIONS_KEY}" not in model.metadata:
        what = f"is missing: {name} needs a model with M-RoPE; convert the checkpoint again"
        raise model.error(f"{architecture}.{SECTIONS_KEY}", what, UsageError)
    projected = f.get(f"{PREFIX}.projection_dim", int)
    if projected != length and encoder.has_projection_dim:
        what = f"is {projected}; the embedding length of {printable(model.path.name, 80)} is {length}"
        raise f.error(f"{PREFIX}.projection_dim", what, UsageError)
    return length, deepstack


def reject_unknown_keys(f: GGUF) -> None:
    """Raise UnsupportedError for a key of the projector that nothing reads. Building the graph checks the keys of the
    encoder."""
    kinds = ("vision", "audio")
    of_encoders = tuple(f"clip.{kind}." for kind in kinds if f.get(f"clip.has_{kind}_encoder", bool, False))
    for key in f.metadata:
        if key.startswith("clip.") and not key.startswith(of_encoders) and key not in OTHER_KEYS:
            raise f.error(key, "is not supported", UnsupportedError)


def smallest_grid(f: GGUF, encoder: Encoder) -> tuple[int, int]:
    """Return the grid of patches of a square image of the size that the file names, or that the processor chooses; if
    it is 0, of the smallest image."""
    size, patch = (f.get(f"{PREFIX}.{key}", int) for key in ("image_size", "patch_size"))
    if size == 0:
        return make_image_processor(f).grids(1, 1)[0]
    if not (1 <= patch <= MAX_PATCH_SIZE and patch <= size <= MAX_IMAGE_SIZE):
        raise f.error(f"{PREFIX}.image_size", f"is {size}, with patches of {patch}")
    return make_image_processor(f).grids(size, size)[0] if encoder.any_size else (size // patch, size // patch)

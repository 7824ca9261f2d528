"""The sound encoder in a projector file. Building the graph checks every tensor and key of it, and refuses those that
it does not use."""

from dataclasses import dataclass, field

from localinfer.errors import UnsupportedError, UsageError
from localinfer.escaping import printable
from localinfer.gguf.reader import GGUF, Tensor
from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.properties.hyperparameters import Hyperparameters
from localinfer.graph.recording.model_graph import HookedGraph
from localinfer.multimodal.encoder_graph.encoder_model import (
    IGNORE_DAMAGED_WEIGHTS,
    check_lengths,
    encoder_model,
    read_heads,
    with_a_layer,
)
from localinfer.multimodal.sounds.encoders import SoundFamily, find_family, known
from localinfer.multimodal.sounds.framing import CHUNK_FRAMES, Framing
from localinfer.multimodal.sounds.sound_builder import MAX_BANDS, SoundBuilder
from localinfer.multimodal.sounds.sound_input import SoundProcessor
from localinfer.multimodal.sounds.sound_tensors import SoundTensors
from localinfer.options import Options

PREFIX = "clip.audio"


@dataclass(frozen=True, eq=False)
class SoundEncoder:
    """The sound encoder in a projector file that fits its language model."""

    f: GGUF
    projector_type: str
    family: SoundFamily
    embedding_length: int
    converted: dict[str, Tensor] = field(default_factory=dict)  # tensors that the host has converted

    @property
    def framing(self) -> Framing:
        """How many frames of a spectrogram are encoded, and which of them the convolutions see together."""
        return self.family.framing

    @property
    def some_frames(self) -> int:
        """A number of frames that it encodes."""
        return self.framing.frames(min(self.framing.window, CHUNK_FRAMES))

    def make_processor(self) -> SoundProcessor:
        """Return what makes the spectrograms that it reads."""
        return self.family.make_processor(Hyperparameters(self.f, PREFIX).count("num_mel_bins", maximum=MAX_BANDS))

    @IGNORE_DAMAGED_WEIGHTS
    def build(
        self, n_frames: int, options: Options, hooks: HookedGraph | None = None
    ) -> tuple[SoundBuilder, Buffer]:
        """Build and check the graph for sounds of `n_frames` frames, a result of `framing.frames`. Nothing is allocated
        or compiled. Return the builder and the output rows."""
        f = self.f if self.family.has_layers else with_a_layer(self.f, PREFIX)
        hparams = Hyperparameters(f, PREFIX)
        hparams.accept("feed_forward_length", "projection_dim", "projector_type")
        tensors = SoundTensors(f, hparams.count("block_count"), self.converted)
        n_rows = sum(map(self.framing.positions, self.framing.lengths(n_frames)))
        model = encoder_model(f, hparams, tensors, n_rows, options, hooks)
        g = SoundBuilder(model, self.framing, n_frames, read_heads(model))
        output = self.family.build(g)
        g.point(output, "a.output")
        tensors.reject_unused()
        hparams.reject_unused()
        check_lengths(f, model.graph)
        if output.n != self.embedding_length:
            what = f"{self.projector_type} makes rows of {output.n} values; the model needs {self.embedding_length}"
            raise f.error(f"{PREFIX}.projector_type", what)
        return g, output


def open_sound_encoder(f: GGUF, model: GGUF) -> SoundEncoder:
    """Return the sound encoder of a projector file.

    Raises LocalInferError for an invalid file, UnsupportedError for an encoder that cannot run, UsageError if it does
    not belong to the language model.
    """
    key = f"{PREFIX}.projector_type" if f"{PREFIX}.projector_type" in f.metadata else "clip.projector_type"
    name = f.get(key, str)
    family = find_family(name)
    if family is None:
        what = f"{printable(name, 80)!r} is not supported for sounds (supported: {', '.join(known())})"
        raise f.error(key, what, UnsupportedError)
    architecture = model.get("general.architecture", str)
    if family.architectures and architecture not in family.architectures:
        what = f"{name} belongs to {' or '.join(family.architectures)} models, not to {printable(architecture, 80)}"
        raise f.error(key, what, UsageError)
    length, projected = model.get(f"{architecture}.embedding_length", int), f.get(f"{PREFIX}.projection_dim", int)
    if projected != length:
        what = f"is {projected}; the embedding length of {printable(model.path.name, 80)} is {length}"
        raise f.error(f"{PREFIX}.projection_dim", what, UsageError)
    encoder = SoundEncoder(f, name, family, length)
    encoder.build(encoder.some_frames, Options())
    return encoder

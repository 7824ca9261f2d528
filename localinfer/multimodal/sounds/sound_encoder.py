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
from localinfer.multimodal.sounds.spectrum import LogEnergies, log_energies
from localinfer.options import Options

PREFIX = "clip.audio"


@dataclass(frozen=True, eq=False)
class SoundEncoder:
    """The sound encoder in a projector file that fits its language model, whose embedding length is 0 if the file was
    opened without one."""

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

    def make_processor(self, energies: LogEnergies = log_energies) -> SoundProcessor:
        """Return what makes the spectrograms that it reads."""
        n_bands = Hyperparameters(self.f, PREFIX).count("num_mel_bins", maximum=MAX_BANDS)
        return self.family.make_processor(n_bands, energies)

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
        if self.embedding_length and output.n != self.embedding_length:
            what = f"{self.projector_type} makes rows of {output.n} values; the model needs {self.embedding_length}"
            raise f.error(f"{PREFIX}.projector_type", what)
        return g, output


def open_sound_encoder(f: GGUF, model: GGUF | None) -> SoundEncoder:
    """Return the sound encoder of a projector file of a language model, or of any if it is None.

    Raises LocalInferError for an invalid file, UnsupportedError for an encoder that cannot run, UsageError if it does
    not belong to the language model.
    """
    name = f.get(type_key(f), str)
    family = find_family(name)
    if family is None:
        what = f"{printable(name, 80)!r} is not supported for sounds (supported: {', '.join(known())})"
        raise f.error(type_key(f), what, UnsupportedError)
    encoder = SoundEncoder(f, name, family, 0 if model is None else check_pair(f, name, family, model))
    encoder.build(encoder.some_frames, Options())
    return encoder


def check_pair(f: GGUF, name: str, family: SoundFamily, model: GGUF) -> int:
    """Return the embedding length of the language model. Raises UsageError if the encoder is that of another one."""
    architecture = model.get("general.architecture", str)
    if family.architectures and architecture not in family.architectures:
        what = f"{name} belongs to {' or '.join(family.architectures)} models, not to {printable(architecture, 80)}"
        raise f.error(type_key(f), what, UsageError)
    length, projected = model.get(f"{architecture}.embedding_length", int), f.get(f"{PREFIX}.projection_dim", int)
    if projected != length:
        what = f"is {projected}; the embedding length of {printable(model.path.name, 80)} is {length}"
        raise f.error(f"{PREFIX}.projection_dim", what, UsageError)
    return length


def type_key(f: GGUF) -> str:
    """Return the key that names the projector type."""
    key = f"{PREFIX}.projector_type"
    return key if key in f.metadata else "clip.projector_type"

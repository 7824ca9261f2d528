"""An open file of Parakeet. Opening it checks every tensor and key; those that nothing reads are refused."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from localinfer.architectures import SPEECH_RECOGNITION
from localinfer.errors import UnsupportedError, UsageError
from localinfer.escaping import printable
from localinfer.gguf.reader import GGUF, StringArray, Tensor, open_gguf
from localinfer.graph.ops.buffers import Buffer
from localinfer.graph.properties.hyperparameters import Hyperparameters
from localinfer.graph.properties.tensors import Tensors
from localinfer.multimodal.encoder_graph.encoder_model import (
    IGNORE_DAMAGED_WEIGHTS,
    check_lengths,
    encoder_model,
    read_heads,
)
from localinfer.multimodal.media import SAMPLE_RATE
from localinfer.multimodal.sounds.encoders import conformer
from localinfer.multimodal.sounds.encoders.parakeet import FRAMING, SoundProcessor, require_equal
from localinfer.multimodal.sounds.nemo_mel import GUARD, N_FFT, PREEMPHASIS, WINDOW
from localinfer.multimodal.sounds.sound_builder import MAX_BANDS, SoundBuilder
from localinfer.multimodal.sounds.sound_tensors import SoundTensors
from localinfer.multimodal.sounds.spectrum import STEP, LogEnergies, hann, log_energies, slaney_filters
from localinfer.options import Options
from localinfer.speech_recognition.encoder_names import PREFIX, EncoderView, encoder_view, projector_name

CTC, RNNT, TDT = "ctc", "rnnt", "tdt"
HEADS = {CTC: CTC, RNNT: RNNT, TDT: TDT, "hybrid_rnnt_ctc": RNNT, "hybrid_tdt_ctc": TDT}
MAX_VOCABULARY, MAX_DURATION, MAX_SYMBOLS, MAX_LSTM_LAYERS, MAX_WIDTH = 1 << 20, 1 << 10, 1 << 10, 64, 1 << 16
SECONDS_PER_ROW = conformer.FACTOR * STEP / SAMPLE_RATE
EXPECTED: Mapping[str, int | float | str] = {  # by keys: the only value that is supported
    "encoder.subsampling_factor": conformer.FACTOR,
    "encoder.conv_norm_type": "batch_norm",
    "preprocessor.sample_rate": SAMPLE_RATE,
    "preprocessor.n_fft": N_FFT,
    "preprocessor.win_length": WINDOW,
    "preprocessor.hop_length": STEP,
    "preprocessor.preemph": PREEMPHASIS,
    "preprocessor.mag_power": 2.0,
    "preprocessor.normalize": "per_feature",
    "preprocessor.log_zero_guard": GUARD,
    "joint.activation": "relu",
}
DESCRIPTIVE = ("encoder.pos_emb_max_len", "encoder.use_bias", "encoder.subsampling_conv_channels")
OTHER_TENSORS = re.compile(r"vad_head\..+|(ctc_decoder\..+)")  # of parts that are not needed for a transcript


@dataclass(frozen=True, eq=False)
class RecognitionFile:
    """The file of a speech recognition model.

    `head` is "ctc", "rnnt" or "tdt"; `pieces` are the texts of the tokens, to which the id `blank` does not belong.
    `durations` are the numbers of rows that a token may last, for TDT; `max_symbols` is the largest number of tokens of
    a row. `scale` is the factor of the encoder's input.
    """

    f: GGUF
    head: str
    pieces: tuple[str, ...]
    durations: tuple[int, ...]
    max_symbols: int
    scale: float
    n_lstm_layers: int
    n_predicted: int
    n_joint: int
    encoder: EncoderView
    converted: dict[str, Tensor] = field(default_factory=dict)  # tensors that the host has converted

    @property
    def blank(self) -> int:
        """The id of the blank, which follows those of the tokens."""
        return len(self.pieces)

    @property
    def n_rows(self) -> int:
        """The number of values of a row of the encoder."""
        return self.f.get("parakeet.encoder.d_model", int)

    def make_processor(self, energies: LogEnergies = log_energies) -> SoundProcessor:
        """Return what makes the spectrograms that the encoder reads."""
        return SoundProcessor(Hyperparameters(self.encoder, PREFIX).count("num_mel_bins", maximum=MAX_BANDS), energies)

    @IGNORE_DAMAGED_WEIGHTS
    def build_encoder(self, n_frames: int, options: Options) -> tuple[SoundBuilder, Buffer]:
        """Build and check the graph for `n_frames` frames. Nothing is allocated or compiled. Return the builder and the
        output rows."""
        hparams = Hyperparameters(self.encoder, PREFIX)
        hparams.accept("feed_forward_length")
        tensors = SoundTensors(self.encoder, hparams.count("block_count"), self.converted)
        model = encoder_model(self.encoder, hparams, tensors, FRAMING.positions(n_frames), options)
        g = SoundBuilder(model, FRAMING, n_frames, read_heads(model))
        require_equal(g, "a.mel_filters", slaney_filters(g.n_bands, N_FFT).T)
        require_equal(g, "a.window", hann(WINDOW, WINDOW, periodic=False))
        x = conformer.subsample(g)
        if self.scale != 1:
            g.scale(x, self.scale)
        conformer.transform(g, x)
        tensors.reject_unused()
        check_lengths(self.encoder, model.graph)
        return g, x


def open_recognition_file(path: str | Path) -> RecognitionFile:
    """Open the file of a speech recognition model. Raises LocalInferError for an invalid file, UnsupportedError for a
    model that cannot run, UsageError for a model of another kind."""
    return recognition_file(open_gguf(path))


def recognition_file(f: GGUF) -> RecognitionFile:
    """Return the checked file of a speech recognition model."""
    architecture = f.get("general.architecture", str)
    if architecture != SPEECH_RECOGNITION:
        what = f"is {printable(architecture, 80)!r}; that of a speech recognition model is {SPEECH_RECOGNITION!r}"
        raise f.error("general.architecture", what, UsageError)
    hparams = Hyperparameters(f)
    head = HEADS.get(kind := f.get(hparams.full_name("arch"), str))
    if head is None:
        what = f"{printable(kind, 80)!r} is not supported (supported: {', '.join(HEADS)})"
        raise hparams.error("arch", what, UnsupportedError)
    require_expected(hparams)
    is_transducer = head != CTC
    pieces = read_pieces(f, hparams)
    scale = f.get("parakeet.encoder.d_model", int) ** 0.5 if hparams.flag("encoder.xscaling", True) else 1.0
    found = RecognitionFile(
        f, head, pieces, read_durations(hparams) if head == TDT else (),
        hparams.count("decoding.max_symbols", 10, maximum=MAX_SYMBOLS), scale,
        hparams.count("decoder.pred_rnn_layers", maximum=MAX_LSTM_LAYERS) if is_transducer else 0,
        hparams.count("decoder.pred_hidden", maximum=MAX_WIDTH) if is_transducer else 0,
        hparams.count("joint.joint_hidden", maximum=MAX_WIDTH) if is_transducer else 0, encoder_view(f),
    )  # fmt: skip
    g, _ = found.build_encoder(1, Options())
    if hparams.count("encoder.conv_kernel", maximum=conformer.MAX_WIDTH) != conformer.kernel_width(g):
        raise hparams.error("encoder.conv_kernel", f"is not {conformer.kernel_width(g)}, the width of the convolutions")
    hparams.accept(*DESCRIPTIVE, "encoder.d_model", "encoder.ff_dim", "encoder.n_layers", "encoder.n_heads",
                   "encoder.feat_in", "preprocessor.n_mels", "tdt.num_durations")  # fmt: skip
    hparams.accept(*(key.removeprefix("parakeet.") for key in f.metadata if key.startswith("parakeet.vad.")))
    hparams.reject_unused()
    tensors = Tensors(f, 0)
    tensors.accept(*(name for name in f.tensors if projector_name(name) or OTHER_TENSORS.fullmatch(name)))
    check_head(found, tensors)
    tensors.reject_unused()
    return found


def require_expected(hparams: Hyperparameters) -> None:
    """Raise UnsupportedError for a spectrogram, a norm or an activation of another kind, LocalInferError for a value of
    another type."""
    for key, expected in EXPECTED.items():
        value = hparams.f.get(hparams.full_name(key), type(expected), expected)
        is_equal = np.isclose(value, expected) if isinstance(value, float) else value == expected
        if not is_equal:
            shown = printable(str(value), 80)
            raise hparams.error(key, f"is {shown}; only {expected} is supported", UnsupportedError)


def read_pieces(f: GGUF, hparams: Hyperparameters) -> tuple[str, ...]:
    """Return the texts of the tokens."""
    strings = f.get(hparams.full_name("tokenizer.pieces"), StringArray)
    count = hparams.count("vocab_size", maximum=MAX_VOCABULARY)
    if len(strings) != count:
        raise hparams.error("tokenizer.pieces", f"has {len(strings)} tokens; parakeet.vocab_size is {count}")
    if hparams.count("blank_id", count, minimum=0) != count:
        raise hparams.error("blank_id", f"must be {count}, behind the tokens", UnsupportedError)
    return tuple(each.decode("utf-8", "replace") for each in strings)


def read_durations(hparams: Hyperparameters) -> tuple[int, ...]:
    """Return the numbers of rows that a token may last."""
    values = hparams.f.get(hparams.full_name("tdt.durations"), np.ndarray, signed=True)
    if values.dtype.kind not in "iu" or not len(values) or values.min() < 0 or values.max() > MAX_DURATION:
        raise hparams.error("tdt.durations", f"must be integers from 0 to {MAX_DURATION}")
    return tuple(int(value) for value in values)


def check_head(file: RecognitionFile, tensors: Tensors) -> None:
    """Raise LocalInferError for a tensor of the head that is missing or has another shape."""
    for name, shape in head_shapes(file).items():
        found = file.f.tensors.get(name)
        as_convolution = found is not None and found.shape == (*shape, 1)
        tensors.tensor(name, *shape, *([1] if as_convolution else []))


def head_shapes(file: RecognitionFile) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors of the head by name."""
    n_classes = file.blank + 1
    if file.head == CTC:
        layer = "decoder.decoder_layers.0"
        return {f"{layer}.weight": (n_classes, file.n_rows), f"{layer}.bias": (n_classes,)}
    n, m = file.n_predicted, file.n_joint
    shapes: dict[str, tuple[int, ...]] = {"decoder.prediction.embed.weight": (n_classes, n)}
    for number in range(file.n_lstm_layers):
        lstm = "decoder.prediction.dec_rnn.lstm"
        shapes |= {f"{lstm}.weight_{kind}_l{number}": (4 * n, n) for kind in ("ih", "hh")}
        shapes |= {f"{lstm}.bias_{kind}_l{number}": (4 * n,) for kind in ("ih", "hh")}
    n_logits = n_classes + len(file.durations)
    for name, rows, columns in (("enc", m, file.n_rows), ("pred", m, n), ("joint_net.2", n_logits, m)):
        shapes |= {f"joint.{name}.weight": (rows, columns), f"joint.{name}.bias": (rows,)}
    return shapes

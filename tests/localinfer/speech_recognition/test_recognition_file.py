"""Files of Parakeet: those of other programs are read, and damaged or unknown ones are refused with the names that the
file has."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import parakeet_checkpoints
import parakeet_files
import pytest
from checkpoints import edit_json
from parakeet_files import Metadata, Tensors
from tiny import tiny_llama

import localinfer
from localinfer.conversion import open_checkpoint
from localinfer.errors import LocalInferError, UnsupportedError, UsageError
from localinfer.multimodal.media import Sound
from localinfer.multimodal.sounds.nemo_mel import N_FFT, WINDOW
from localinfer.multimodal.sounds.spectrum import hann, slaney_filters
from localinfer.options import Options
from localinfer.speech_recognition.recognition_file import open_recognition_file
from localinfer.transcription.recognizer import SpeechRecognizer

LAYER = "encoder.layers.1."


def as_parakeet_cpp(metadata: Metadata, tensors: Tensors) -> None:
    """Change a file to what parakeet.cpp's converter makes of a model with a second head: convolutions have all
    dimensions, and there are the constants of the spectrogram, the tensors of the other head, and more keys."""
    metadata |= {
        "parakeet.arch": "hybrid_tdt_ctc", "parakeet.encoder.conv_norm_type": "batch_norm",
        "parakeet.encoder.pos_emb_max_len": 5000, "parakeet.preprocessor.sample_rate": 16_000,
        "parakeet.preprocessor.n_mels": 32, "parakeet.preprocessor.n_fft": 512,
        "parakeet.preprocessor.win_length": 400, "parakeet.preprocessor.hop_length": 160,
        "parakeet.preprocessor.preemph": 0.97, "parakeet.preprocessor.mag_power": 2.0,
        "parakeet.preprocessor.normalize": "per_feature", "parakeet.preprocessor.log_zero_guard": 2.0**-24,
    }  # fmt: skip
    for name in [each for each in tensors if "pointwise_conv" in each and each.endswith("weight")]:
        tensors[name] = tensors[name][:, :, None]
    tensors["preprocessor.featurizer.fb"] = slaney_filters(32, N_FFT).T[None].astype(np.float32)
    tensors["preprocessor.featurizer.window"] = hann(WINDOW, WINDOW, periodic=False).astype(np.float32)
    tensors["ctc_decoder.decoder_layers.0.weight"] = np.zeros((46, 32, 1), np.float32)
    tensors["ctc_decoder.decoder_layers.0.bias"] = np.zeros(46, np.float32)


def test_files_in_the_layout_of_parakeet_cpp_give_the_same_text(tmp_path: Path) -> None:
    changed = parakeet_files.write_changed("tdt", tmp_path, as_parakeet_cpp)
    texts = []
    for path in (tmp_path / "original.gguf", changed):
        with SpeechRecognizer(path, Options(threads=2)) as model:
            texts.append([segment.text for segment in model.transcribe(Sound(parakeet_checkpoints.sound()))])
    assert texts[0] == texts[1] != []


def key(name: str, value: object) -> Callable[[Metadata, Tensors], object]:
    return lambda metadata, _: metadata.update({f"parakeet.{name}": value})


def without_key(name: str) -> Callable[[Metadata, Tensors], object]:
    return lambda metadata, _: metadata.pop(f"parakeet.{name}")


def without(name: str) -> Callable[[Metadata, Tensors], object]:
    return lambda _, tensors: tensors.pop(name)


def shortened(name: str) -> Callable[[Metadata, Tensors], object]:
    return lambda _, tensors: tensors.update({name: tensors[name][:-1]})


@pytest.mark.parametrize(
    ("change", "problem", "kind"),
    [
        (without(f"{LAYER}self_attn.linear_q.weight"), f"tensor {LAYER}self_attn.linear_q.weight: is missing", None),
        (shortened(f"{LAYER}norm_out.bias"), f"tensor {LAYER}norm_out.bias: has shape [31], not [32]", None),
        (shortened("joint.pred.weight"), "tensor joint.pred.weight: has shape [23, 24], not [24, 24]", None),
        (without("decoder.prediction.embed.weight"), "tensor decoder.prediction.embed.weight: is missing", None),
        (lambda _, tensors: tensors.update(more=np.zeros(2, np.float32)), "tensor more: is not used", UnsupportedError),
        (without_key("arch"), "parakeet.arch: is missing", None),
        (key("arch", "sortformer"), "parakeet.arch: 'sortformer' is not supported", UnsupportedError),
        (without_key("encoder.d_model"), "parakeet.encoder.d_model: is missing", None),
        (key("encoder.n_layers", 3), "tensor encoder.layers.2.", None),
        (key("encoder.n_heads", 0), "parakeet.encoder.n_heads: is 0; there must be at least one", None),
        (key("encoder.conv_kernel", 5), "parakeet.encoder.conv_kernel: is not 9", None),
        (key("encoder.subsampling_factor", 4), "parakeet.encoder.subsampling_factor: is 4; only 8", UnsupportedError),
        (key("preprocessor.preemph", 0.5), "parakeet.preprocessor.preemph: is 0.5; only 0.97", UnsupportedError),
        (key("preprocessor.sample_rate", [1, 2]), "sample_rate: expected an integer, got an array of numbers", None),
        (key("encoder.conv_norm_type", 1.0), "encoder.conv_norm_type: expected a string, got a", None),
        (key("preprocessor.normalize", "NA"), "parakeet.preprocessor.normalize: is NA", UnsupportedError),
        (key("streaming.chunk_size", [1, 2]), "parakeet.streaming.chunk_size: ", UnsupportedError),
        (key("vocab_size", 44), "parakeet.tokenizer.pieces: has 45 tokens; parakeet.vocab_size is 44", None),
        (key("blank_id", 0), "parakeet.blank_id: must be 45", UnsupportedError),
        (key("tdt.durations", [0, -1]), "parakeet.tdt.durations: must be integers from 0 to 1024", None),
        (key("decoder.pred_rnn_layers", 3), "dec_rnn.lstm.weight_ih_l2: is missing", None),
        (key("tokenizer.pieces", 3), "parakeet.tokenizer.pieces: ", None),
    ],
)  # fmt: skip
def test_damaged_and_unknown_files_are_refused(
    tmp_path: Path, change: Callable[[Metadata, Tensors], object], problem: str, kind: type[LocalInferError] | None
) -> None:
    path = parakeet_files.write_changed("tdt", tmp_path, change)
    with pytest.raises(kind or LocalInferError) as caught:
        open_recognition_file(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_models_of_other_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'llama'; that of a speech recognition model is 'parakeet'"):
        open_recognition_file(tiny_llama(tmp_path / "model.gguf"))
    with pytest.raises(UnsupportedError, match="a speech recognition model, which only `localinfer transcribe` runs"):
        localinfer.load(parakeet_files.write_model("ctc", tmp_path / "parakeet.gguf"))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"hidden_act": "tanh"}, "config.json: hidden_act: 'tanh' is not supported"),
        ({"blank_token_id": 0}, "config.json: blank_token_id: must be 45, the last id"),
        ({"durations": [0, 1.5]}, "config.json: durations: must be integers"),
        ({"decoder_hidden_size": 0}, "config.json: decoder_hidden_size: is 0"),
    ],
)
def test_checkpoints_of_other_kinds_are_refused(tmp_path: Path, changes: dict[str, object], problem: str) -> None:
    folder = parakeet_checkpoints.write_checkpoint("tdt", tmp_path)
    edit_json(folder / "config.json", lambda config: config.update(changes))
    with pytest.raises(LocalInferError) as caught:
        open_checkpoint(folder)
    assert problem in str(caught.value)


def test_the_tokens_of_a_unigram_tokenizer_are_read(tmp_path: Path) -> None:
    folder = parakeet_checkpoints.write_checkpoint("tdt", tmp_path)

    def to_unigram(tokenizer: dict[str, dict[str, object]]) -> None:
        tokenizer["model"] = {"type": "Unigram", "vocab": [[piece, -1.0] for piece in parakeet_checkpoints.PIECES]}

    before = open_checkpoint(folder).fields["parakeet.tokenizer.pieces"]
    edit_json(folder / "tokenizer.json", to_unigram)
    assert open_checkpoint(folder).fields["parakeet.tokenizer.pieces"] == before

"""Conversion of a checkpoint of Parakeet, a speech recognition model: a model directory -> a `Source`.

Tensors get the names that NeMo gives them, as in files of whisper.cpp and parakeet.cpp, and keys those of parakeet.cpp.
Convolutions that read one row are matrices, so that they can be quantized.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from localinfer.architectures import SPEECH_RECOGNITION
from localinfer.conversion import vocabulary
from localinfer.conversion.checkpoint_folder import CONFIG, CheckpointFolder, JsonObject
from localinfer.conversion.metadata import general_metadata
from localinfer.conversion.projectors.projector_architecture import Values
from localinfer.conversion.tensor_formats import safetensors_file
from localinfer.conversion.tensor_formats.safetensors_file import StoredTensor
from localinfer.conversion.tensor_formats.values import native_values, to_bytes, to_float32
from localinfer.conversion.tensors import F32, TYPES
from localinfer.conversion.vocabulary import json_tokenizer
from localinfer.errors import UnsupportedError
from localinfer.escaping import printable
from localinfer.gguf.source import Field, Source, SourceTensor

HEADS = {"ParakeetForCTC": "ctc", "ParakeetForRNNT": "rnnt", "ParakeetForTDT": "tdt"}
NAMES = (  # regular expressions for names of transformers, and what NeMo has instead
    (r"^encoder\.subsampling\.layers\.", "encoder.pre_encode.conv."),
    (r"^encoder\.subsampling\.linear\.", "encoder.pre_encode.out."),
    (r"\.conv\.norm\.", ".conv.batch_norm."),
    (r"\.self_attn\.([qkv])_proj\.", r".self_attn.linear_\1."),
    (r"\.self_attn\.o_proj\.", ".self_attn.linear_out."),
    (r"\.self_attn\.relative_k_proj\.", ".self_attn.linear_pos."),
    (r"\.self_attn\.bias_", ".self_attn.pos_bias_"),
    (r"^ctc_head\.", "decoder.decoder_layers.0."),
    (r"^decoder\.embedding\.", "decoder.prediction.embed."),
    (r"^decoder\.lstm\.", "decoder.prediction.dec_rnn.lstm."),
    (r"^decoder\.decoder_projector\.", "joint.pred."),
    (r"^encoder_projector\.", "joint.enc."),
    (r"^joint\.head\.", "joint.joint_net.2."),
)
IGNORED = re.compile(r".*\.num_batches_tracked")
MATRIX = re.compile(r".*\.pointwise_conv\d\.weight|decoder\.decoder_layers\.0\.weight")
FLOAT = re.compile(  # tensors that are float32 in every file
    r".*\.bias|.*\.(pos_)?bias_\w+|.*\.(norm_\w+|batch_norm)\.\w+|.*\.depthwise_conv\.weight"
    r"|encoder\.pre_encode\.conv\..+"
)
ONLY_VALUES = {"subsampling_conv_kernel_size": 3, "subsampling_conv_stride": 2}
MAX_SIZE, MAX_VOCABULARY = 1 << 17, 1 << 20


def is_speech_recognition(config: JsonObject) -> bool:
    """Return whether config.json describes a speech recognition model."""
    classes = config.get("architectures", list, [])
    return bool(classes) and isinstance(classes[0], str) and classes[0] in HEADS


def open_speech_recognition(folder: CheckpointFolder) -> Source:
    """Read a checkpoint except tensor bytes, which are loaded on demand. Raises what `open_checkpoint` raises."""
    config = folder.json(CONFIG)
    head = HEADS[config.get("architectures", list)[0]]
    encoder = config.child("encoder_config")
    tensors = convert_tensors(safetensors_file.open_weights(folder))
    n_classes = config.positive_int("vocab_size", MAX_VOCABULARY)
    blank_key = "pad_token_id" if head == "ctc" else "blank_token_id"
    if config.get(blank_key, int, n_classes - 1) != n_classes - 1:
        raise config.error(blank_key, f"must be {n_classes - 1}, the last id", UnsupportedError)
    fields = {
        "arch": Field.text(head),
        **encoder_fields(encoder),
        **(transducer_fields(config) if head != "ctc" else {}),
        "vocab_size": Field.uint32(n_classes - 1),
        "blank_id": Field.uint32(n_classes - 1),
        "tokenizer.pieces": Field.texts(read_pieces(folder, n_classes - 1)),
    }
    if head == "tdt":
        fields["tdt.durations"] = durations_field(config)
    metadata = {
        "general.architecture": Field.text(SPEECH_RECOGNITION),
        **general_metadata.fields(folder, tensors.values()),
        **{f"{SPEECH_RECOGNITION}.{key}": field for key, field in fields.items()},
    }
    return Source(folder.path, metadata, tensors, folder.files)


def encoder_fields(encoder: JsonObject) -> dict[str, Field]:
    """Return the keys of the encoder. Raises UnsupportedError for one of another kind."""
    for key, expected in ONLY_VALUES.items():
        if (found := encoder.get(key, int, expected)) != expected:
            raise encoder.error(key, f"is {found}; only {expected} is supported", UnsupportedError)
    if (act := encoder.get("hidden_act", str, "silu")) != "silu":
        raise encoder.error("hidden_act", f"'{act}' is not supported (only silu)", UnsupportedError)
    counts = {
        "feat_in": "num_mel_bins", "d_model": "hidden_size", "n_layers": "num_hidden_layers",
        "n_heads": "num_attention_heads", "ff_dim": "intermediate_size", "conv_kernel": "conv_kernel_size",
        "subsampling_factor": "subsampling_factor", "subsampling_conv_channels": "subsampling_conv_channels",
    }  # fmt: skip
    return {
        **{f"encoder.{new}": Field.uint32(encoder.positive_int(old, MAX_SIZE)) for new, old in counts.items()},
        "encoder.xscaling": Field.flag(encoder.get("scale_input", bool, True)),
    }


def transducer_fields(config: JsonObject) -> dict[str, Field]:
    """Return the keys of the prediction network and the joint network."""
    if (act := config.get("hidden_act", str, "relu")) != "relu":
        raise config.error("hidden_act", f"'{act}' is not supported (only relu)", UnsupportedError)
    width = config.positive_int("decoder_hidden_size", MAX_SIZE)
    return {
        "decoder.pred_hidden": Field.uint32(width),
        "decoder.pred_rnn_layers": Field.uint32(config.positive_int("num_decoder_layers", 64)),
        "joint.joint_hidden": Field.uint32(width),
        "joint.activation": Field.text("relu"),
        "decoding.max_symbols": Field.uint32(config.positive_int("max_symbols_per_step", 1 << 10, 10)),
    }


def durations_field(config: JsonObject) -> Field:
    """Return the numbers of rows that a token may last."""
    values = config.get("durations", list)
    if not values or not all(type(value) is int and 0 <= value <= 1 << 10 for value in values):
        raise config.error("durations", "must be integers from 0 to 1024")
    return Field.numbers(np.array(values, np.int32))


def read_pieces(folder: CheckpointFolder, count: int) -> list[str]:
    """Return the texts of the tokens, of which the tokenizer may lack some."""
    file = folder.json(json_tokenizer.NAME)
    model = file.child("model")
    if model.get("type", str, "BPE") == "BPE":
        found = {id: text for text, id in json_tokenizer.read_vocabulary(model).items()}
    else:
        entries = model.get("vocab", list)
        if not all(isinstance(entry, list) and entry and isinstance(entry[0], str) for entry in entries):
            raise model.error("vocab", "must be pairs of a text and a score")
        found = {id: entry[0] for id, entry in enumerate(entries)}
    found |= {id: text for id, text, _ in vocabulary.added_tokens(folder)}
    return [found.get(id, f"<unused{id}>") for id in range(count)]


def convert_tensors(stored: Mapping[str, StoredTensor]) -> dict[str, SourceTensor]:
    """Return the tensors by NeMo's names."""
    tensors: dict[str, SourceTensor] = {}
    for tensor in stored.values():
        name = tensor.name
        for pattern, replacement in NAMES:
            name = re.sub(pattern, replacement, name)
        if IGNORED.fullmatch(name):
            continue
        if name in tensors:
            raise tensor.error(f"becomes {printable(name, 80)}, as another tensor does")
        tensors[name] = convert_tensor(name, tensor)
    return tensors


def convert_tensor(name: str, stored: StoredTensor) -> SourceTensor:
    """Return a tensor in its type, or in float32 if it is small."""
    if stored.dtype not in TYPES:
        raise stored.error(f"type {stored.dtype} is not supported (only {', '.join(TYPES)})", UnsupportedError)
    shape = stored.shape[:-1] if MATRIX.fullmatch(name) and stored.shape[2:] == (1,) else stored.shape
    if not 0 < len(shape) <= 4 or 0 in shape:
        raise stored.error(f"has the unexpected shape {list(stored.shape)}")
    as_floats = bool(FLOAT.fullmatch(name))
    read: Callable[[StoredTensor], Values] = to_float32 if as_floats else native_values
    return SourceTensor(name, shape, F32 if as_floats else TYPES[stored.dtype], partial(load, stored, read))


def load(stored: StoredTensor, read: Callable[[StoredTensor], Values]) -> Values:
    """Return the bytes of a tensor."""
    return to_bytes(read(stored))

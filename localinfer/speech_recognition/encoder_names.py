"""The encoder of a Parakeet file, by the names of tensors and keys that `localinfer.multimodal.sounds` expects: those
of llama.cpp's projector files. Errors have the names of the file."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from localinfer.errors import LocalInferError
from localinfer.gguf.reader import GGUF, Tensor, Value

PREFIX = "clip.audio"
EPSILON = 1e-5  # of norms: PyTorch's default
KEYS = {  # the keys of projector files, and those of Parakeet's
    f"{PREFIX}.embedding_length": "parakeet.encoder.d_model",
    f"{PREFIX}.feed_forward_length": "parakeet.encoder.ff_dim",
    f"{PREFIX}.block_count": "parakeet.encoder.n_layers",
    f"{PREFIX}.attention.head_count": "parakeet.encoder.n_heads",
    f"{PREFIX}.num_mel_bins": "parakeet.encoder.feat_in",
}
PARTS = {  # the beginnings of names outside the layers
    "encoder.pre_encode.conv.": "a.conv1d.",
    "encoder.pre_encode.out.": "a.pre_encode.out.",
    "preprocessor.featurizer.fb": "a.mel_filters",
    "preprocessor.featurizer.window": "a.window",
}
OF_LAYERS = {  # the beginnings of names in a layer: the first that fits decides
    "norm_feed_forward1.": "ffn_norm.",
    "norm_feed_forward2.": "ffn_norm_1.",
    "feed_forward1.linear1.": "ffn_up.",
    "feed_forward1.linear2.": "ffn_down.",
    "feed_forward2.linear1.": "ffn_up_1.",
    "feed_forward2.linear2.": "ffn_down_1.",
    "norm_self_att.": "ln1.",
    "self_attn.linear_q.": "attn_q.",
    "self_attn.linear_k.": "attn_k.",
    "self_attn.linear_v.": "attn_v.",
    "self_attn.linear_out.": "attn_out.",
    "self_attn.linear_pos.": "linear_pos.",
    "self_attn.pos_bias_": "pos_bias_",
    "norm_conv.": "norm_conv.",
    "conv.pointwise_conv1.": "conv_pw1.",
    "conv.pointwise_conv2.": "conv_pw2.",
    "conv.depthwise_conv.": "conv_dw.",
    "conv.batch_norm.running_": "conv_norm_",
    "conv.batch_norm.": "conv_norm.",
    "norm_out.": "ln2.",
}
LAYER, PROJECTOR_LAYER = re.compile(r"(encoder\.layers\.)(\d+\.)(.+)"), re.compile(r"(a\.blk\.)(\d+\.)(.+)")


def renamed(name: str, table: Mapping[str, str]) -> str:
    """Return a name with another beginning, or "" if the table has none."""
    old = next((each for each in table if name.startswith(each)), None)
    return "" if old is None else table[old] + name.removeprefix(old)


def projector_name(name: str) -> str:
    """Return the name of a tensor of the encoder in projector files, or "" for another tensor."""
    if found := LAYER.fullmatch(name):
        kind = renamed(found[3], OF_LAYERS)
        return kind and f"a.blk.{found[2]}{kind}"
    return renamed(name, PARTS)


def file_name(name: str) -> str:
    """Return the name that a key or a tensor of projector files has in the file of Parakeet."""
    if found := PROJECTOR_LAYER.fullmatch(name):
        return f"encoder.layers.{found[2]}{renamed(found[3], {new: old for old, new in OF_LAYERS.items()})}"
    return KEYS.get(name) or renamed(name, {new: old for old, new in PARTS.items()}) or name


@dataclass(frozen=True, eq=False)
class EncoderView(GGUF):
    """An open file of Parakeet with the names of projector files, and only the tensors and keys of the encoder."""

    def error(self, field: str, problem: str, kind: type[LocalInferError] = LocalInferError) -> LocalInferError:
        is_tensor = field.startswith("tensor ")
        name = file_name(field.removeprefix("tensor "))
        return super().error(f"tensor {name}" if is_tensor else name, problem, kind)


def encoder_view(f: GGUF) -> EncoderView:
    """Return the encoder of a file, with the names and the shapes that projector files have."""
    metadata: dict[str, Value] = {new: f.metadata[old] for new, old in KEYS.items() if old in f.metadata}
    metadata |= {
        "general.architecture": f.metadata["general.architecture"],
        f"{PREFIX}.attention.layer_norm_epsilon": EPSILON,
    }
    found = ((projector_name(name), tensor) for name, tensor in f.tensors.items())
    tensors = {name: reshaped(name, tensor) for name, tensor in found if name}
    return EncoderView(**{**{each.name: getattr(f, each.name) for each in fields(GGUF)},
                          "metadata": metadata, "tensors": tensors})  # fmt: skip


def reshaped(name: str, tensor: Tensor) -> Tensor:
    """Return a tensor in the shape of projector files: convolutions that read one row are matrices, depthwise ones have
    no dimension of 1, and biases of convolutions over time and frequency have two."""
    shape = tensor.shape
    if re.fullmatch(r"a\.blk\.\d+\.conv_pw\d\.weight", name) and shape[2:] == (1,):
        return replace(tensor, shape=shape[:2])
    if name.endswith(".conv_dw.weight") and len(shape) == 3 and shape[1] == 1:
        return replace(tensor, shape=(shape[0], shape[2]))
    if re.fullmatch(r"a\.conv1d\.\d+\.bias", name) and len(shape) == 1:
        return replace(tensor, shape=(*shape, 1, 1))
    return tensor

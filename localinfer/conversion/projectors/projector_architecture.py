"""The description of an encoder and its projector for conversion: which tensors they have, and their metadata.

Names are mapped in two steps: a family's `names` and `parts` give GGUF's names directly or the names that the `gguf`
package knows, which maps the rest.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from localinfer.conversion.checkpoint_folder import CheckpointFolder, JsonObject
from localinfer.conversion.config_key_aliases import TEXT_KEYS
from localinfer.conversion.tensor_formats.values import Floats
from localinfer.gguf.source import Field

Values: TypeAlias = NDArray[Any]  # of any dtype, BF16 as uint16, in the tensor's shape
Part: TypeAlias = Callable[[Values], Values]
Parts: TypeAlias = Mapping[str, Part]  # by the name of the part
Fields: TypeAlias = dict[str, Field]

USUAL_LENGTHS = {"llama": 4096, "mistral": 4096}  # embedding lengths of text models, which config.json may lack


@dataclass(frozen=True)
class ProjectorConfig:
    """The files that describe an encoder. `encoder` is the object of config.json that describes it."""

    folder: CheckpointFolder
    root: JsonObject
    encoder: JsonObject
    preprocessor: JsonObject

    @property
    def n_embd_text(self) -> int:
        """The embedding length of the text model."""
        texts = [self.root.child(key) for key in TEXT_KEYS if self.root.child(key).values]
        where = next((each for each in texts if each.values.get("hidden_size") is not None), self.root)
        kind = texts[0].get("model_type", str, "") if texts else ""
        return where.positive_int("hidden_size", 1 << 20, USUAL_LENGTHS.get(kind))


def no_parts(name: str, config: ProjectorConfig) -> Parts | None:  # noqa: ARG001 (one signature for all)
    """Return None: the tensor is taken as it is."""
    return None


def no_sizes(config: ProjectorConfig) -> Mapping[str, int]:  # noqa: ARG001
    """Return no sizes: config.json has all of them by the usual names."""
    return {}


def no_tensors(config: ProjectorConfig) -> Mapping[str, Values]:  # noqa: ARG001
    """Return no tensors: the checkpoint has all of them."""
    return {}


def unchanged(config: ProjectorConfig) -> ProjectorConfig:
    return config


@dataclass(frozen=True, kw_only=True)
class ProjectorArchitecture:
    """An encoder in tables.

    `prefixes` maps the beginnings of the names of its tensors to what they are replaced by; other tensors belong to the
    text model. `names` replaces parts of these names. `parts` divides or reorders a tensor: it returns functions of its
    values by name, none of them for a tensor that is left out, or None. `offsets` are added to the values of tensors,
    by GGUF's names. `computed` are functions of the values, by patterns of GGUF's names. `batch_norm` is a pattern of
    the names of batch normalizations, which become factors and terms, one for each column. `added` returns tensors that
    no checkpoint has, float32 by GGUF's names. `root_key` names the object of config.json that has those of the encoder
    and of the text model.
    """

    projector_type: str
    fields: Callable[[ProjectorConfig], Fields]  # in addition to those of every encoder
    prefixes: Mapping[str, str]
    ignored: str = ""  # a pattern of names
    names: tuple[tuple[str, str], ...] = ()  # regular expressions and what replaces them, one after the other
    parts: Callable[[str, ProjectorConfig], Parts | None] = no_parts
    offsets: Mapping[str, float] = field(default_factory=dict)
    computed: Mapping[str, Callable[[Floats], Floats]] = field(default_factory=dict)
    batch_norm: str = ""
    f32_tensors: str = ""  # patterns of GGUF's names whose type does not depend on the file's type
    f16_tensors: str = ""
    float_parts: str = ""  # a pattern of GGUF's names of parts that are computed of float32 values, and are F32
    is_audio: bool = False
    has_layers: bool = True
    type_key: str = "clip.projector_type"
    encoder_key: str = "vision_config"
    root_key: str = ""
    added: Callable[[ProjectorConfig], Mapping[str, Values]] = no_tensors
    sizes: Callable[[ProjectorConfig], Mapping[str, int]] = no_sizes  # that config.json lacks or names otherwise
    change: Callable[[ProjectorConfig], ProjectorConfig] = unchanged  # of what the files of the checkpoint say

    def change_of(self, name: str) -> Callable[[Floats], Floats] | None:
        """Return the function of the values of a tensor, by its GGUF name, or None."""
        offset = self.offsets.get(name, 0.0)
        if offset:
            return lambda values: values + np.float32(offset)
        return next((each for pattern, each in self.computed.items() if re.fullmatch(pattern, name)), None)

    def checkpoint_name(self, name: str) -> str | None:
        """Return the name of a tensor as `parts` and the `gguf` package expect it, or None for one of another model."""
        if self.ignored and re.search(self.ignored, name):
            return None
        prefix = next((each for each in self.prefixes if name.startswith(each)), None)
        if prefix is None:
            return None
        name = self.prefixes[prefix] + name.removeprefix(prefix)
        for pattern, replacement in self.names:
            name = re.sub(pattern, replacement, name)
        return name


# --- parts that several families have ---


def whole(values: Values) -> Values:
    return values


def vector(values: Values) -> Values:
    """Return a scalar as a tensor of one value."""
    return values.reshape(-1)


def rows(number: int, count: int) -> Part:
    """Return the function that takes one of `count` equal parts of the rows."""
    return lambda values: values[len(values) // count * number : len(values) // count * (number + 1)]


def split_qkv(name: str, fused: str, separate: tuple[str, str, str]) -> Parts | None:
    """Return the three parts of a fused matrix or bias whose name contains `fused`, or None."""
    if fused not in name:
        return None
    return {name.replace(fused, each): rows(number, 3) for number, each in enumerate(separate)}


def split_frames(name: str, patch_embedding: str) -> Parts | None:
    """Return the convolutions of the two frames of a video, which an image is for the encoder, or None."""
    if name != patch_embedding:
        return None
    return {
        "v.patch_embd.weight": lambda values: values[:, :, 0],
        "v.patch_embd.weight.1": lambda values: values[:, :, 1],
    }


def permute_heads(values: Values, n_head: int) -> Values:
    """Return the rows of queries or keys with the halves of each head interleaved, as GGUF's RoPE expects them."""
    shape = values.shape
    return values.reshape(n_head, 2, shape[0] // n_head // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


# --- fields that several families have ---


def epsilon(config: JsonObject, key: str, default: float | None = None, *, kind: str = "vision") -> Fields:
    """Return the epsilon of the norms."""
    return {f"clip.{kind}.attention.layer_norm_epsilon": Field.float32(config.positive_float(key, default))}


def activation(config: JsonObject, default: str | None = None) -> Fields:
    """Return the activation, which is GELU or SiLU."""
    name = config.get("hidden_act", str) if default is None else config.get("hidden_act", str, default)
    if name not in ("gelu", "silu", "gelu_pytorch_tanh"):
        raise config.error("hidden_act", f"'{name}' is not supported")
    return USE_SILU if name == "silu" else USE_GELU


USE_GELU = {"clip.use_gelu": Field.flag(True)}
USE_SILU = {"clip.use_silu": Field.flag(True)}
# The largest numbers in config.json: patches of a merged square, pixels of a patch and patches of a table on each side.
MAX_MERGE, MAX_PATCH, MAX_SIDE, MAX_HEADS = 64, 256, 4096, 1 << 12


def scale_factor(config: JsonObject, key: str, default: int | None = None) -> Fields:
    """Return by how much the projector divides the rows and the columns of patches."""
    return {"clip.vision.projector.scale_factor": Field.uint32(config.positive_int(key, MAX_MERGE, default))}

"""Conversion of a checkpoint's encoder of images or sounds, with its projector: a model directory -> a `Source`.

The result is what llama.cpp calls an mmproj file: `general.architecture` is "clip". Names and keys are llama.cpp's.
The tables are in projectors/. A checkpoint's tensors that no table names belong to the text model.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localinfer.conversion.checkpoint_folder import CONFIG, CheckpointFolder, JsonObject
from localinfer.conversion.metadata import general_metadata
from localinfer.conversion.projectors import find_projectors
from localinfer.conversion.projectors.projector_architecture import (
    Fields,
    Part,
    ProjectorArchitecture,
    ProjectorConfig,
    whole,
)
from localinfer.conversion.tensor_formats import safetensors_file
from localinfer.conversion.tensor_formats.safetensors_file import StoredTensor
from localinfer.conversion.tensor_formats.values import FLOATS, Floats, native_values, to_bytes, to_float32
from localinfer.conversion.tensors import F32, TYPES
from localinfer.errors import UnsupportedError
from localinfer.escaping import printable
from localinfer.gguf.projector_source import ProjectorSource
from localinfer.gguf.source import Field, Source, SourceTensor

SUFFIXES = (".weight", ".bias", ".input_min", ".input_max", ".output_min", ".output_max")
GGUF_NAME = re.compile(r"(v|a|mm|resampler|adapter)\.[\w.]+")
MAX_LAYERS = 1024
PROJECTOR_LAYERS = 8  # layers of a projector have numbers, too
BATCH_NORM_PARTS, BATCH_NORM_EPSILON = ("weight", "bias", "running_mean", "running_var"), 1e-5  # PyTorch's default
LAYER_KEYS = ("num_hidden_layers", "n_layers", "num_layers", "depth", "encoder_layers")
SIZES: Mapping[str, tuple[str, ...]] = {  # by GGUF's keys: config.json's keys
    "embedding_length": ("hidden_size", "embed_dim"),
    "feed_forward_length": ("intermediate_size",),
    "block_count": LAYER_KEYS,
    "attention.head_count": ("num_attention_heads", "num_heads"),
}
OF_LAYERS = ("feed_forward_length", "block_count", "attention.head_count")  # 0 if there are none
IMAGE_SIZES: Mapping[str, tuple[str, ...]] = {"image_size": ("image_size",), "patch_size": ("patch_size",)}


def open_projector(path: str | Path) -> ProjectorSource:
    """Read the encoder of a checkpoint directory, except tensor bytes, which are loaded on demand.

    Raises LocalInferError with `<file>: <key or tensor>: <what is wrong>`, UnsupportedError naming what is not
    supported, ModelNotFoundError if there is no such directory.
    """
    folder = CheckpointFolder(Path(path))
    config = read_config(folder)
    stored = safetensors_file.open_weights(folder)
    fields: Fields = {}
    tensors: dict[str, SourceTensor] = {}
    fixed: dict[str, str] = {}
    missing = ""
    for architecture, each in encoder_configs(config):
        found = convert_tensors(architecture, each, stored)
        if not found:
            missing = architecture.projector_type
            continue
        found |= {name: added_tensor(name, values) for name, values in architecture.added(each).items()}
        tensors |= found
        fields |= {
            **encoder_fields(architecture, each),
            **architecture.fields(each),
            architecture.type_key: Field.text(architecture.projector_type),
        }
        fixed |= {name: kind for name in found if (kind := fixed_type(architecture, name, found[name].shape))}
    if not tensors:
        raise folder.error(f"there are no tensors of a {missing} encoder")
    fields = {
        "general.architecture": Field.text("clip"),
        **general_metadata.fields(folder, tensors.values()),
        "general.type": Field.text("mmproj"),
        **fields,
    }
    convolutions = {name for name in tensors if is_convolution(name)}
    return ProjectorSource(Source(folder.path, fields, tensors, folder.files), fixed, convolutions)


def read_config(folder: CheckpointFolder) -> ProjectorConfig:
    """Return the files that describe the encoder. Of two preprocessor files, the newer kind takes precedence."""
    root = folder.json(CONFIG)
    older, newer = folder.optional_json("preprocessor_config.json"), folder.optional_json("processor_config.json")
    values = {**older.values, **older.child("media_proc_cfg").values}
    values |= {**newer.values, **newer.child("image_processor").values}
    values |= {f"image_{key}": values[f"norm_{key}"] for key in ("mean", "std") if f"norm_{key}" in values}
    where = older if older.values else newer
    return ProjectorConfig(folder, root, root.child("vision_config"), JsonObject(where.path, values))


def encoder_configs(config: ProjectorConfig) -> list[tuple[ProjectorArchitecture, ProjectorConfig]]:
    """Return the encoders that config.json describes. Models that may have two of them may lack one."""
    architectures = find_projectors(config.root)
    if architectures[0].root_key:
        config = replace(config, root=config.root.child(architectures[0].root_key))
    present = [each for each in architectures if config.root.child(each.encoder_key).values] or architectures[:1]
    return [(each, each.change(replace(config, encoder=encoder_config(config, each)))) for each in present]


def encoder_config(config: ProjectorConfig, architecture: ProjectorArchitecture) -> JsonObject:
    """Return the object that describes the encoder, with the sizes that it lacks or names otherwise."""
    encoder = config.root.child(architecture.encoder_key)
    if not encoder.values:
        raise config.root.error(architecture.encoder_key, "is missing: the checkpoint has no encoder", UnsupportedError)
    sizes = architecture.sizes(replace(config, encoder=encoder))
    return replace(encoder, values={**encoder.values, **sizes})


def encoder_fields(architecture: ProjectorArchitecture, config: ProjectorConfig) -> Fields:
    """Return the keys that every encoder of its kind has."""
    kind = "audio" if architecture.is_audio else "vision"
    sizes = SIZES if architecture.is_audio else {**IMAGE_SIZES, **SIZES}
    zeros = () if architecture.has_layers else OF_LAYERS
    fields = {
        f"clip.has_{kind}_encoder": Field.flag(True),
        f"clip.{kind}.projection_dim": Field.uint32(config.n_embd_text),
        **{
            f"clip.{kind}.{key}": Field.uint32(0 if key in zeros else read_size(config.encoder, names))
            for key, names in sizes.items()
        },
    }
    if not architecture.is_audio:
        means = ("image_mean", "image_std")
        fields |= {f"clip.vision.{key}": channel_values(config.preprocessor, key) for key in means}
    return fields


def read_size(encoder: JsonObject, names: tuple[str, ...]) -> int:
    """Return the first of these sizes that exists; only an image size may be 0, for any size."""
    key = next((name for name in names if encoder.values.get(name) is not None), names[0])
    if key == "image_size" and encoder.values.get(key) == 0:
        return 0
    return encoder.positive_int(key, 1 << 20)


def channel_values(preprocessor: JsonObject, key: str) -> Field:
    """Return the mean or the standard deviation of each channel."""
    values = preprocessor.get(key, list)
    if len(values) != 3 or not all(type(value) in (int, float) and abs(value) < 1e4 for value in values):
        raise preprocessor.error(key, "must be three numbers")
    return Field.numbers(np.array(values, np.float32))


# --- tensors ---


def convert_tensors(
    architecture: ProjectorArchitecture, config: ProjectorConfig, stored: Mapping[str, StoredTensor]
) -> dict[str, SourceTensor]:
    """Return the encoder's tensors by GGUF's names. Raises UnsupportedError for one that has no name."""
    known = name_map(read_size(config.encoder, LAYER_KEYS) if architecture.has_layers else 0)
    tensors: dict[str, SourceTensor] = {}
    norms: dict[str, dict[str, StoredTensor]] = {}
    for name, tensor in stored.items():
        checkpoint_name = architecture.checkpoint_name(name)
        if checkpoint_name is None:
            continue
        whole_name, _, kind = checkpoint_name.rpartition(".")
        if architecture.batch_norm and re.fullmatch(architecture.batch_norm, whole_name):
            norms.setdefault(known(whole_name) or whole_name, {})[kind] = tensor
            continue
        for part_name, part in parts_of(architecture, checkpoint_name, config, tensor):
            new = part_name if GGUF_NAME.fullmatch(part_name) else known(part_name)
            if new is None:
                problem = f"is not part of the supported {architecture.projector_type} encoder"
                raise tensor.error(problem, UnsupportedError)
            if new in tensors:
                raise tensor.error(f"becomes {printable(new, 80)}, as another tensor does")
            as_floats = bool(re.fullmatch(architecture.float_parts, new))
            tensors[new] = convert_tensor(tensor, new, part, architecture.change_of(new), as_floats=as_floats)
    for name, parts in norms.items():
        tensors |= batch_normalization(name, parts)
    return tensors


def added_tensor(name: str, values: NDArray[np.float32]) -> SourceTensor:
    """Return a tensor with these values."""
    return SourceTensor(name, values.shape, F32, partial(to_bytes, values))


def batch_normalization(name: str, parts: Mapping[str, StoredTensor]) -> dict[str, SourceTensor]:
    """Return the factors and the terms of a batch normalization with fixed means and variances. Raises LocalInferError
    unless there is one of each for each column."""
    some = next(iter(parts.values()))
    for kind in BATCH_NORM_PARTS:
        if kind not in parts:
            raise some.error(f"belongs to a batch normalization without {kind}")
        if parts[kind].shape != some.shape or len(some.shape) != 1:
            raise parts[kind].error(f"has the unexpected shape {list(parts[kind].shape)}")

    def factors() -> Floats:
        deviation: Floats = np.sqrt(to_float32(parts["running_var"]) + np.float32(BATCH_NORM_EPSILON))
        return to_float32(parts["weight"]) / deviation

    def terms() -> Floats:
        return to_float32(parts["bias"]) - to_float32(parts["running_mean"]) * factors()

    return {
        f"{name}.weight": SourceTensor(f"{name}.weight", some.shape, F32, lambda: to_bytes(factors())),
        f"{name}.bias": SourceTensor(f"{name}.bias", some.shape, F32, lambda: to_bytes(terms())),
    }


def parts_of(
    architecture: ProjectorArchitecture, name: str, config: ProjectorConfig, tensor: StoredTensor
) -> Iterator[tuple[str, Part]]:
    """Yield the parts of a tensor by name: the tensor itself, unless the family divides it or leaves it out."""
    try:
        parts = architecture.parts(name, config)
    except (IndexError, ValueError):
        raise tensor.error("has an unexpected name", UnsupportedError) from None
    yield from ({name: whole} if parts is None else parts).items()


def convert_tensor(
    stored: StoredTensor, name: str, part: Part, change: Callable[[Floats], Floats] | None, *, as_floats: bool = False
) -> SourceTensor:
    """Return a part of a tensor in its type, its changed values in float32, or a part of its values `as_floats`."""
    if stored.dtype not in TYPES:
        raise stored.error(f"type {stored.dtype} is not supported (only {', '.join(TYPES)})", UnsupportedError)
    try:
        kind = np.float32 if as_floats else np.uint8
        shape = part(np.broadcast_to(kind(0), stored.shape)).shape
    except (IndexError, ValueError):
        raise stored.error(f"has the unexpected shape {list(stored.shape)}") from None
    if not 0 < len(shape) <= 4 or 0 in shape:
        raise stored.error(f"has the unexpected shape {list(stored.shape)}")
    if as_floats:
        return SourceTensor(name, shape, F32, lambda: to_bytes(part(to_float32(stored).reshape(stored.shape))))
    if change:
        return SourceTensor(name, shape, F32, lambda: to_bytes(change(to_float32(stored))))
    return SourceTensor(name, shape, TYPES[stored.dtype], partial(load_part, stored, part))


def load_part(stored: StoredTensor, part: Part) -> NDArray[np.uint8]:
    """Return the bytes of a part of a tensor."""
    if part is whole:
        return stored.load()
    assert stored.dtype in FLOATS
    return to_bytes(part(native_values(stored).reshape(stored.shape)))


def name_map(n_layer: int) -> Callable[[str], str | None]:
    """Return a function that maps a tensor's name to GGUF's, or to None."""
    import gguf

    n = max(min(n_layer, MAX_LAYERS), PROJECTOR_LAYERS)
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, n)
    return lambda name: table.get_name(name, try_suffixes=SUFFIXES)


def fixed_type(architecture: ProjectorArchitecture, name: str, shape: tuple[int, ...]) -> str:
    """Return the type that a tensor has in every file, or ""."""
    if len(shape) == 1 or name.endswith("_norm.weight"):
        return "F32"
    if re.fullmatch(architecture.f16_tensors, name):
        return "F16"
    if re.fullmatch(architecture.f32_tensors, name):
        return "F32"
    if is_convolution(name):
        return ""
    return "F32" if re.search(r"position_embd\.|(?<!\.weight)$", name) else ""


def is_convolution(name: str) -> bool:
    """Return whether a tensor is a convolution, which is F16 in a file of this type and else F32."""
    return ".patch_embd.weight" in name or ".patch_merger.weight" in name

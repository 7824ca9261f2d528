"""What the files of sentence-transformers add to a checkpoint: prompts, and dense layers after pooling.

modules.json lists the modules after the model, each with its directory; pooling.py reads that of the pooling.
"""

import warnings
from collections.abc import Iterator, Mapping

from localinfer.conversion.checkpoint_folder import CheckpointFolder, JsonObject
from localinfer.conversion.tensor_formats.safetensors_file import StoredTensor, read_file
from localinfer.conversion.tensor_formats.values import to_bytes, to_float32
from localinfer.conversion.tensors import TYPES
from localinfer.errors import UnsupportedError
from localinfer.escaping import printable
from localinfer.gguf.pooling import DEFAULT_PROMPT_KEY, DENSE_LAYERS, PROMPT_KEY
from localinfer.gguf.source import Field, SourceTensor
from localinfer.graph.properties.hyperparameters import MAXIMA

MODULES, CONFIG = "modules.json", "config_sentence_transformers.json"
WEIGHTS = "model.safetensors"
UNSUPPORTED_MODULES = ("WeightedLayerPooling", "LayerNorm", "CNN", "LSTM")  # others do not change embeddings
ACTIVATIONS = {"Identity": "identity", "Tanh": "tanh"}


def module_folders(folder: CheckpointFolder, kind: str) -> Iterator[str]:
    """Yield the directories of the modules of a class, in order. Raises LocalInferError if one is elsewhere."""
    for module in folder.json_list(MODULES):
        if module_type(module) != kind:
            continue
        path = module.get("path", str)
        if "/" in path or path.startswith("."):
            raise folder.error(f"{MODULES}: {printable(repr(path), 80)} is not a directory within this one")
        yield path


def module_type(module: JsonObject) -> str:
    """Return the class name of a module, without its package."""
    return module.get("type", str, "").rpartition(".")[2]


# --- prompts ---


def prompt_fields(folder: CheckpointFolder) -> dict[str, Field]:
    """Return the keys of the prompts, unless all of them are empty."""
    config = folder.optional_json(CONFIG)
    prompts = config.child("prompts")
    texts = {name: prompts.get(name, str, "") for name in prompts.values}
    if not any(texts.values()):
        return {}
    poolings = [folder.json(f"{path}/config.json") for path in module_folders(folder, "Pooling")]
    if not all(pooling.get("include_prompt", bool, True) for pooling in poolings):
        what = "prompts are left out: the pooling excludes their tokens, which is not supported"
        warnings.warn(f"{printable(str(folder.path / CONFIG))}: {what}", stacklevel=2)
        return {}
    fields = {f"{PROMPT_KEY}{name}": Field.text(text) for name, text in texts.items()}
    default = config.get("default_prompt_name", str, "")
    return fields | ({DEFAULT_PROMPT_KEY: Field.text(default)} if default in texts else {})


# --- dense layers ---


def dense_fields(folder: CheckpointFolder, architecture: str) -> dict[str, Field]:
    """Return the keys of dense layers: those of llama.cpp, and their activation unless it is the identity."""
    fields: dict[str, Field] = {}
    for name, config in dense_configs(folder).items():
        for key in ("in", "out"):
            length = config.positive_int(f"{key}_features", MAXIMA["embedding_length"])
            fields[f"{architecture}.{name}_feat_{key}"] = Field.uint32(length)
        if (activation := read_activation(config)) != "identity":
            fields[f"{architecture}.{name}_activation"] = Field.text(activation)
    return fields


def dense_tensors(folder: CheckpointFolder) -> dict[str, SourceTensor]:
    """Return the matrices and biases of dense layers by GGUF's names.

    Raises LocalInferError naming a tensor that is missing or has another shape than its config.json says.
    """
    tensors: dict[str, SourceTensor] = {}
    for (name, config), path in zip(dense_configs(folder).items(), module_folders(folder, "Dense"), strict=False):
        file = folder.find(f"{path}/{WEIGHTS}")
        if file is None:
            raise folder.error(f"there is no {path}/{WEIGHTS}: pickles are never loaded", UnsupportedError)
        stored = {tensor.name: tensor for tensor in read_file(file)}
        n_out, n_in = config.get("out_features", int), config.get("in_features", int)
        shapes = {"weight": (n_out, n_in)} | ({"bias": (n_out,)} if config.get("bias", bool, True) else {})
        for kind, shape in shapes.items():
            if f"linear.{kind}" not in stored:
                raise folder.error(f"{path}/{WEIGHTS}: tensor linear.{kind}: is missing")
            tensors[f"{name}.{kind}"] = dense_tensor(stored[f"linear.{kind}"], f"{name}.{kind}", shape)
    return tensors


def dense_configs(folder: CheckpointFolder) -> Mapping[str, JsonObject]:
    """Return the configuration of each dense layer by GGUF's name."""
    for module in folder.json_list(MODULES):
        if module_type(module) in UNSUPPORTED_MODULES:
            raise folder.error(f"{MODULES}: module {module_type(module)} is not supported", UnsupportedError)
    configs = [folder.json(f"{path}/config.json") for path in module_folders(folder, "Dense")]
    if len(configs) > len(DENSE_LAYERS):
        what = f"{len(configs)} modules of class Dense are not supported, only {len(DENSE_LAYERS)}"
        raise folder.error(f"{MODULES}: {what}", UnsupportedError)
    return dict(zip(DENSE_LAYERS, configs, strict=False))


def read_activation(config: JsonObject) -> str:
    """Return the name of the activation; Tanh is sentence-transformers' default."""
    name = config.get("activation_function", str, "Tanh").rpartition(".")[2]
    if name not in ACTIVATIONS:
        what = f"{printable(repr(name), 40)} is not supported, only {' and '.join(ACTIVATIONS)}"
        raise config.error("activation_function", what, UnsupportedError)
    return ACTIVATIONS[name]


def dense_tensor(stored: StoredTensor, name: str, shape: tuple[int, ...]) -> SourceTensor:
    """Return the tensor by its GGUF name; a bias becomes F32."""
    if stored.shape != shape:
        raise stored.error(f"has shape {list(stored.shape)}, not {list(shape)}")
    if stored.dtype not in TYPES:
        raise stored.error(f"type {stored.dtype} is not supported (only {', '.join(TYPES)})", UnsupportedError)
    if len(shape) == 1:
        return SourceTensor(name, shape, TYPES["F32"], lambda: to_bytes(to_float32(stored)))
    return SourceTensor(name, shape, TYPES[stored.dtype], stored.load)

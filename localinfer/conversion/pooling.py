"""Pooling of embedding models, from the files of sentence-transformers, and other metadata of encoders.

modules.json lists the modules after the model, among them the directory of the pooling configuration.
"""

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.checkpoint_folder import CheckpointFolder, JsonObject
from localinfer.conversion.hparams import HParams
from localinfer.errors import UnsupportedError
from localinfer.escaping import printable
from localinfer.gguf.source import Field
from localinfer.graph.properties.pooling import POOLINGS

MODULES = "modules.json"
# The first key that is true is used, as in llama.cpp.
MODE_FLAGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_lasttoken": "last"}
NAMES = {"mean": "mean", "cls": "cls", "lasttoken": "last"}  # pooling names of newer configurations


def fields(folder: CheckpointFolder, architecture: Architecture, hparams: HParams) -> dict[str, Field]:
    """Return the metadata keys of an embedding model."""
    is_bidirectional = architecture.is_encoder or architecture.is_diffusion
    metadata = {"attention.causal": Field.flag(False)} if is_bidirectional else {}
    pooling = read_pooling(folder)
    if pooling:
        metadata["pooling_type"] = Field.uint32(POOLINGS.index(pooling))
    keys = {f"{architecture.name}.{key}": field for key, field in metadata.items()}
    if "token_types" in architecture.model_tensors:
        keys["tokenizer.ggml.token_type_count"] = Field.uint32(hparams.n_token_types)
    return keys


def read_pooling(folder: CheckpointFolder) -> str:
    """Return the name of the pooling type, or "" if the checkpoint has none."""
    paths = [each.get("path", str) for each in folder.json_list(MODULES) if module_type(each) == "Pooling"]
    if not paths:
        return ""
    if "/" in paths[0] or paths[0].startswith("."):
        raise folder.error(f"{MODULES}: {printable(repr(paths[0]), 80)} is not a directory within this one")
    config = folder.json(f"{paths[0]}/config.json")
    named = NAMES.get(config.get("pooling_mode", str, ""))
    pooling = next((name for key, name in MODE_FLAGS.items() if config.get(key, bool, False)), named)
    if not pooling:
        raise config.error("pooling_mode", f"is none of {', '.join(NAMES)}", UnsupportedError)
    return pooling


def module_type(module: JsonObject) -> str:
    """Return the class name of a sentence-transformers module, without its package."""
    return module.get("type", str, "").rpartition(".")[2]

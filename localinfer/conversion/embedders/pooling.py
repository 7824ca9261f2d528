"""Pooling of embedding models, from the files of sentence-transformers, and other metadata of encoders."""

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.checkpoint_folder import CheckpointFolder
from localinfer.conversion.embedders.sentence_transformers import module_folders
from localinfer.conversion.hparams import HParams
from localinfer.errors import UnsupportedError
from localinfer.gguf.pooling import POOLINGS
from localinfer.gguf.source import Field

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
    has_types = "token_types" in architecture.model_tensors + architecture.optional_model_tensors
    if (has_types and hparams.n_token_types) or architecture.name == "bert":  # llama.cpp's bert requires the key
        keys["tokenizer.ggml.token_type_count"] = Field.uint32(hparams.n_token_types)
    return keys


def read_pooling(folder: CheckpointFolder) -> str:
    """Return the name of the pooling type, or "" if the checkpoint has none."""
    path = next(module_folders(folder, "Pooling"), None)
    if path is None:
        return ""
    config = folder.json(f"{path}/config.json")
    named = NAMES.get(config.get("pooling_mode", str, ""))
    pooling = next((name for key, name in MODE_FLAGS.items() if config.get(key, bool, False)), named)
    if not pooling:
        raise config.error("pooling_mode", f"is none of {', '.join(NAMES)}", UnsupportedError)
    return pooling

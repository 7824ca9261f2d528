"""The text models of MiniCPM-V: those of other architectures, by its version."""

from collections.abc import Mapping
from dataclasses import replace

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures.llama import LLAMA
from localinfer.conversion.architectures.qwen import QWEN2, QWEN3, QWEN35
from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.errors import UnsupportedError

BY_VERSION: Mapping[str, Architecture] = {"2.6": QWEN2, "4.0": LLAMA, "4.5": QWEN3}


def text_model(config: JsonObject) -> Architecture:
    """Return the architecture of the text model. Raises UnsupportedError."""
    version = config.values.get("version")
    name = str(version) if isinstance(version, str | float) else f"{version}.0"
    if name not in BY_VERSION:
        raise config.error("version", f"must be one of {', '.join(BY_VERSION)}", UnsupportedError)
    return replace(BY_VERSION[name], tensor_prefix="llm.", ignored_tensors=r"(vpm|resampler)\..*")


BY_CLASS = {
    "MiniCPMV": text_model,
    "MiniCPMV4_6ForConditionalGeneration": replace(QWEN35, ignored_tensors=r"model\.merger\..*"),
}

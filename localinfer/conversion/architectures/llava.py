"""The text models of LLaVA 1.5, LLaVA-NeXT and Granite Vision: those of other architectures."""

from dataclasses import replace

from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures.granite import GRANITE
from localinfer.conversion.architectures.llama import LLAMA, MISTRAL
from localinfer.conversion.architectures.qwen import QWEN2
from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.errors import UnsupportedError
from localinfer.escaping import printable

SIZES = {  # of Vicuna 7B and Mistral 7B, which config.json may lack
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
TEXT_MODELS = {
    "llama": replace(LLAMA, defaults={**LLAMA.defaults, **SIZES}),
    "mistral": replace(MISTRAL, defaults={**MISTRAL.defaults, **SIZES}),
    "qwen2": QWEN2,
    "granite": GRANITE,
}


def text_model(config: JsonObject) -> Architecture:
    """Return the architecture of the text model. Raises UnsupportedError."""
    text = config.child("text_config")
    name = text.get("model_type", str, "llama")
    if name not in TEXT_MODELS:
        raise text.error("model_type", f"{printable(repr(name), 80)} is not supported", UnsupportedError)
    return replace(TEXT_MODELS[name], ignored_tensors=r"(model\.)?image_newline")


BY_CLASS = {"LlavaForConditionalGeneration": text_model, "LlavaNextForConditionalGeneration": text_model}

"""The supported architectures as tables, one module per family. A new architecture is an Architecture and an entry in
BY_CLASS.

common.py contains tables that several architectures share. Classes named ...ForConditionalGeneration are
multimodal: only their text model is converted.
"""

from collections.abc import Callable, Mapping
from difflib import get_close_matches

from localinfer.conversion import eagle3
from localinfer.conversion.architecture import Architecture
from localinfer.conversion.architectures import (
    bitnet,
    cogvlm,
    cohere,
    deepseek,
    eagle,
    encoders,
    experts,
    falcon,
    gemma,
    glm,
    gpt,
    granite,
    lfm,
    llama,
    llava,
    mamba,
    minicpmv,
    nemotron,
    phi,
    qwen,
    rwkv,
    varied,
)
from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.config_key_aliases import normalize_keys
from localinfer.errors import UnsupportedError
from localinfer.escaping import printable

FAMILIES = (
    llama, bitnet, gemma, qwen, phi, glm, granite, experts, deepseek, mamba, rwkv, lfm, nemotron, falcon, gpt, cohere,
    encoders, llava, minicpmv, cogvlm, varied,
)  # fmt: skip
BY_CLASS: Mapping[str, Architecture | Callable[[JsonObject], Architecture]] = {
    name: architecture for family in FAMILIES for name, architecture in family.BY_CLASS.items()
}
BY_TEXT_MODEL = {
    ("Mistral3ForConditionalGeneration", "mistral4"): deepseek.MISTRAL4
}  # classes with several text models


def architectures_named(name: str) -> list[Architecture]:
    """Return the architectures that GGUF gives this name: their tensors have different names in checkpoints."""
    known = {id(each): each for family in FAMILIES for each in vars(family).values() if isinstance(each, Architecture)}
    return [each for each in known.values() if each.name == name]


def find_architecture(config: JsonObject) -> tuple[Architecture, JsonObject]:
    """Return the architecture that config.json names, and its hyperparameters with canonical keys and defaults.

    Raises UnsupportedError naming the architecture and the most similar supported one.
    """
    if eagle3.is_eagle3(config):  # independent of its class name
        return eagle.EAGLE3, eagle3.flatten_config(config)
    classes = config.get("architectures", list)
    name = classes[0] if classes else None
    if not isinstance(name, str) or name not in BY_CLASS:
        nearest = get_close_matches(str(name), BY_CLASS, n=1, cutoff=0.0)[0]
        what = f"{printable(repr(name), 80)} is not supported; the most similar supported class is {nearest}"
        raise config.error("architectures", what, UnsupportedError)
    text_model = config.child("text_config").get("model_type", str, "")
    entry = BY_TEXT_MODEL.get((name, text_model), BY_CLASS[name])
    architecture = entry if isinstance(entry, Architecture) else entry(config)
    parts = architecture.config_parts
    return architecture, normalize_keys(config, architecture.key_aliases, architecture.defaults, parts)

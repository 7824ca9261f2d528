"""The supported architectures as tables, one module per family. A new architecture is a module with an Architecture and
its classes in BY_CLASS; modules of this folder are found by themselves.

common.py contains tables that several architectures share. Classes named ...ForConditionalGeneration are
multimodal: only their text model is converted.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, TypeAlias

from localinfer.architectures import run_python_file
from localinfer.conversion.architecture import UNKNOWN, Architecture
from localinfer.conversion.architectures import deepseek, draft_heads
from localinfer.conversion.checkpoint_folder import JsonObject
from localinfer.conversion.config_key_aliases import normalize_keys
from localinfer.conversion.draft_heads import eagle3
from localinfer.errors import UnsupportedError, UsageError
from localinfer.escaping import printable

Classes: TypeAlias = Mapping[str, Architecture | Callable[[JsonObject], Architecture]]  # by class in config.json
NO_CLASSES: Classes = MappingProxyType({})


def family_modules() -> Iterator[ModuleType]:
    """Yield the modules of this folder that have classes."""
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        module = import_module(f"{__name__}.{path.stem}")
        if hasattr(module, "BY_CLASS"):
            yield module


FAMILIES = tuple(family_modules())
BY_CLASS: Classes = {name: architecture for family in FAMILIES for name, architecture in family.BY_CLASS.items()}
BY_TEXT_MODEL = {
    ("Mistral3ForConditionalGeneration", "mistral4"): deepseek.MISTRAL4
}  # classes with several text models


def read_classes(path: Path) -> Classes:
    """Run the Python file of a user's architecture, and return its BY_CLASS. Raises UsageError if it has none."""
    found: Any = run_python_file(path, "conversion (--conversion)").get("BY_CLASS")
    entries = found.values() if isinstance(found, dict) else [None]
    if not all(isinstance(each, Architecture) or callable(each) for each in entries):
        raise UsageError(f"conversion (--conversion): {path}: has no dict `BY_CLASS` of class names and architectures")
    classes: Classes = found
    return classes


def require_finished(architecture: Architecture) -> None:
    """Raise UsageError if a name or a size of a draft is still TODO."""
    for field in fields(architecture):
        if repr(UNKNOWN) in repr(getattr(architecture, field.name)):
            raise UsageError(f"conversion (--conversion): a {UNKNOWN} is left in `{field.name}`")


def architectures_named(name: str) -> list[Architecture]:
    """Return the architectures that GGUF gives this name: their tensors have different names in checkpoints."""
    known = {id(each): each for family in FAMILIES for each in vars(family).values() if isinstance(each, Architecture)}
    return [each for each in known.values() if each.name == name]


def find_architecture(config: JsonObject, own_classes: Classes = NO_CLASSES) -> tuple[Architecture, JsonObject]:
    """Return the architecture that config.json names, and its hyperparameters with canonical keys and defaults.

    `own_classes` of the user take precedence. Raises UnsupportedError naming the architecture and the most similar
    supported one, UsageError if one of the user's is an unfinished draft.
    """
    if eagle3.is_eagle3(config):  # independent of its class name
        return draft_heads.EAGLE3, eagle3.flatten_config(config)
    classes, by_class = config.get("architectures", list), {**BY_CLASS, **own_classes}
    name = classes[0] if classes else None
    if not isinstance(name, str) or name not in by_class:
        nearest = get_close_matches(str(name), by_class, n=1, cutoff=0.0)[0]
        what = f"{printable(repr(name), 80)} is not supported; the most similar supported class is {nearest}"
        raise config.error("architectures", what, UnsupportedError)
    text_model = config.child("text_config").get("model_type", str, "")
    entry = BY_TEXT_MODEL.get((name, text_model), by_class[name])
    architecture = entry if isinstance(entry, Architecture) else entry(config)
    if name in own_classes:
        require_finished(architecture)
    parts = architecture.config_parts
    config = replace(config, values={**config.values, **architecture.adapted_keys(config)})
    return architecture, normalize_keys(config, architecture.key_aliases, architecture.defaults, parts)

"""LoRA adapters in GGUF, as llama.cpp's convert_lora_to_gguf.py writes them.

    general.type = adapter, adapter.type = lora, general.architecture, adapter.lora.alpha
    NAME.lora_a, NAME.lora_b                for each tensor NAME of the model that the adapter changes

The factor is alpha / rank, or 1 if alpha is 0 or missing. The token embeddings have A transposed.
"""

from pathlib import Path

from localinfer.adapters.stored_pairs import LoraFile, StoredPair
from localinfer.adapters.target import Target
from localinfer.errors import LocalInferError, UnsupportedError
from localinfer.escaping import printable
from localinfer.gguf.gguf_source import from_gguf
from localinfer.gguf.source import Source

LORA_A, LORA_B = ".lora_a", ".lora_b"
ALPHA, INVOCATION = "adapter.lora.alpha", "adapter.alora.invocation_tokens"


def open_gguf_adapter(path: Path, target: Target) -> LoraFile:
    """Open an adapter. Raises LocalInferError unless it is a LoRA adapter for the architecture of the model, and
    UnsupportedError for an activated one (aLoRA)."""
    adapter = from_gguf(path)
    for key, expected in ("general.type", "adapter"), ("adapter.type", "lora"):
        if text(adapter, key) != expected:
            raise LocalInferError(f"{printable(str(path))}: {key}: must be {expected}: it is not a LoRA adapter")
    key = "general.architecture"
    if text(adapter, key) != target.architecture:
        names = (printable(name, 80) for name in (text(adapter, key), target.architecture))
        raise LocalInferError("{}: {}: {}, but the model is {}".format(printable(str(path)), key, *names))
    if INVOCATION in adapter.fields:
        raise UnsupportedError(f"{printable(str(path))}: {INVOCATION}: activated LoRA (aLoRA) is not supported")
    return LoraFile(path, read_pairs(adapter, target), adapter.files)


def text(source: Source, key: str) -> str:
    field = source.fields.get(key)
    return field.value.decode("utf-8", "replace") if field and isinstance(field.value, bytes) else ""


def read_pairs(adapter: Source, target: Target) -> dict[str, StoredPair]:
    """Return the pairs by tensor name. Raises LocalInferError for a matrix without its other one, or of a tensor that
    the model does not have."""
    found = {}
    field = adapter.fields.get(ALPHA)
    alpha = float(field.value) if field and isinstance(field.value, int | float) else 0.0
    for name, tensor in adapter.tensors.items():
        base, is_a = name.removesuffix(LORA_A).removesuffix(LORA_B), name.endswith(LORA_A)
        where = f"{printable(str(adapter.path))}: {printable(name, 80)}"
        if base == name:
            raise LocalInferError(f"{where}: must end in {LORA_A} or {LORA_B}; other tensors are not supported")
        if target.shape(base) is None:
            raise LocalInferError(f"{where}: the model has no such tensor")
        if base + (LORA_B if is_a else LORA_A) not in adapter.tensors:
            raise LocalInferError(f"{where}: the other matrix of the pair is missing")
        if is_a:
            b = adapter.tensors[base + LORA_B]
            found[base] = StoredPair(tensor, b, alpha / max(b.shape[-1:], default=1) if alpha else 1.0)
    return found

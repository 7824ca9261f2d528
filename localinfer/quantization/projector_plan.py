"""The plan of converting an encoder: most tensors get the file's type, and some always have one of their own."""

from collections.abc import Mapping, Set

from localinfer.errors import UsageError
from localinfer.gguf.projector_source import ProjectorSource
from localinfer.gguf.source import Field, SourceTensor
from localinfer.quantization.plan import QuantizationPlan, fields_for
from localinfer.quantization.recipes import Choice

TYPES = ("F32", "F16", "BF16", "Q8_0")
BLOCK_SIZE = 32  # of Q8_0


def make_projector_plan(
    projector: ProjectorSource, recipe: str, more: Mapping[str, Field] | None = None
) -> QuantizationPlan:
    """Return the plan for a file of a type, with metadata in addition. Raises UsageError for a type not in TYPES."""
    if recipe not in TYPES:
        raise UsageError(f"{recipe}: an encoder is written as {', '.join(TYPES[:-1])} or {TYPES[-1]}")
    source = projector.source
    choices = {
        name: Choice(kind, kind)
        for name, tensor in source.tensors.items()
        for kind in [projector.fixed_types.get(name) or type_of(tensor, recipe, projector.convolutions)]
    }
    return QuantizationPlan(source, choices, fields_for(source, recipe, more or {}), {}, {}, {}, None)


def type_of(tensor: SourceTensor, recipe: str, convolutions: Set[str]) -> str:
    """Return the type of a tensor in a file of a type."""
    if tensor.name in convolutions:
        return "F16" if recipe == "F16" else "F32"
    return "F16" if recipe == "Q8_0" and tensor.shape[-1] % BLOCK_SIZE else recipe

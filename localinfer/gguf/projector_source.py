"""An encoder of images or sounds that is about to be written as a projector file (mmproj)."""

from collections.abc import Mapping, Set
from dataclasses import dataclass

from localinfer.gguf.source import Source


@dataclass(frozen=True)
class ProjectorSource:
    """An encoder to write. `fixed_types` are the types of tensors whose type does not depend on the file's type.
    `convolutions` are tensors that are F16 in a file of this type, and else F32."""

    source: Source
    fixed_types: Mapping[str, str]
    convolutions: Set[str]

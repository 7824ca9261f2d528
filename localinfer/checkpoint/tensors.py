"""A checkpoint's tensors as GGUF's: other names, rows in another order, vectors in F32.

Everything that the architecture has must be there, in the shape that config.json gives it, and nothing else.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from localinfer.checkpoint import names
from localinfer.checkpoint.architecture import Architecture
from localinfer.checkpoint.folder import Folder
from localinfer.checkpoint.numbers import Numbers
from localinfer.checkpoint.shapes import shape_of
from localinfer.checkpoint.stored import ternary
from localinfer.checkpoint.stored.reorder import transposed
from localinfer.checkpoint.stored.values import FLOATS, Values, floats, items, raw
from localinfer.checkpoint.stored.weights import Stacked, Stored
from localinfer.errors import Unsupported
from localinfer.files.source import SourceTensor
from quant import ggml

Floats: TypeAlias = NDArray[np.float32]
Present: TypeAlias = Mapping[str, Stored | Stacked]
TYPES = {"F32": 0, "F16": 1, "BF16": 30}  # safetensors' names -> ggml's numbers
assert all(ggml.TYPES[number].name == name for name, number in TYPES.items())
F32 = TYPES["F32"]
ALWAYS_F32 = re.compile(r".*norm(_2)?|position_embd|ffn_gate_inp")  # even those that are matrices
CONVOLUTION = re.compile(r".*\.conv|ssm_conv1d")  # a filter for each column: checkpoints keep a dimension of 1 between
BARE = ("ssm_a", "ssm_d")  # names without ".weight"
BLOCK = re.compile(r"blk\.\d+\.")


class Wanted(NamedTuple):
    """A tensor that there must be: `prefix` is its block's, `kind` the rest, without ".weight"."""

    prefix: str
    kind: str

    def named(self, kind: str) -> str:
        return f"{self.prefix}{kind}" if kind.endswith(".bias") or kind in BARE else f"{self.prefix}{kind}.weight"

    @property
    def name(self) -> str:
        return self.named(self.kind)


def convert(
    folder: Folder, architecture: Architecture, numbers: Numbers, stored: Mapping[str, Stored]
) -> dict[str, SourceTensor]:
    """All tensors of the GGUF file by name; their bytes are read, and changed, when they are asked for.

    Raises LocalInferError naming the tensor that is missing or has another shape, Unsupported one that is foreign.
    """
    present = names.present(architecture, numbers.n_layer, stored)
    left = dict(present)
    tensors: dict[str, SourceTensor] = {}
    for wanted in expected(architecture, numbers, {BLOCK.sub("", name).removesuffix(".weight") for name in present}):
        source = wanted.named(architecture.parts.get(wanted.kind, wanted.kind))
        if source not in present:
            raise folder.error(f"tensor {stored_name(present, source)}: is missing")
        left.pop(source, None)
        if numbers.packed and wanted.kind in architecture.ternary:
            shape, scale = shape_of(wanted.kind, architecture.sizes, numbers), left.pop(f"{source}_scale", None)
            load = ternary.unpacked(present[source], scale, shape, numbers.packed)
            tensors[wanted.name] = SourceTensor(wanted.name, shape, F32, load)
        else:
            tensors[wanted.name] = converted(present[source], wanted, architecture, numbers)
    for name, tensor in left.items():
        refuse(tensor, name, architecture, numbers)
    for name, factors in numbers.rope.factors.items():
        tensors[name] = SourceTensor(name, factors.shape, F32, partial(raw, factors))
    return tensors


def expected(architecture: Architecture, numbers: Numbers, kinds: set[str]) -> Iterator[Wanted]:
    """Every tensor that there must be; what is optional must be in all blocks, if it is among the `kinds` of one."""
    for kind in ("token_embd", architecture.output_norm, *architecture.model):
        yield Wanted("", kind)
    optional = [kind for kind in architecture.optional if architecture.parts.get(kind, kind) in kinds]
    for block in range(numbers.n_layer):
        own = architecture.kinds[numbers.kinds[block]] if architecture.kinds else ()
        for kind in (*architecture.block, *own, *optional):
            yield Wanted(f"blk.{block}.", kind)
    if not numbers.tied:
        yield Wanted("", "output")


def stored_name(present: Present, name: str) -> str:
    """What the checkpoint would call a tensor of that name, as far as another block tells."""
    kind, block = BLOCK.sub("", name), name.split(".")[1]
    for other, tensor in present.items():
        if other != name and BLOCK.sub("", other) == kind:
            return re.sub(r"\.\d+\.", f".{block}.", tensor.name, count=1)
    return name


def refuse(tensor: Stored | Stacked, name: str, architecture: Architecture, numbers: Numbers) -> None:
    """Raise Unsupported for a tensor that is left, unless it is there already or changes nothing."""
    tied = numbers.tied and name == "output.weight"
    if not tied and not (name.endswith(".bias") and tensor.dtype in FLOATS and not floats(tensor).any()):
        raise names.foreign(tensor, architecture)


def converted(stored: Stored | Stacked, wanted: Wanted, architecture: Architecture, numbers: Numbers) -> SourceTensor:
    """A matrix keeps its type, in which its values are moved only; a vector, which is a norm or a bias, becomes F32."""
    kind = wanted.kind
    reorder = architecture.reorder.get(kind)
    shape = shape_of(architecture.parts.get(kind, kind), architecture.sizes, numbers)
    shape = shape[::-1] if reorder is transposed else shape
    shape = (shape[0], 1, *shape[1:]) if CONVOLUTION.fullmatch(kind) else shape
    if stored.shape != shape:
        raise stored.error(f"has shape {list(stored.shape)}, not {list(shape)}")
    if stored.dtype not in TYPES:
        raise stored.error(f"type {stored.dtype} is not supported (only {', '.join(TYPES)})", Unsupported)

    def moved(values: Values) -> Values:
        return reorder(values.reshape(shape), numbers) if reorder else values

    shape_after = shape_of(kind, {**architecture.sizes, **architecture.folded}, numbers)
    if kind in architecture.ternary:
        return SourceTensor(wanted.name, shape_after, F32, lambda: raw(ternary.rounded(floats(stored))))
    if len(shape) == 1 or ALWAYS_F32.fullmatch(kind) or CONVOLUTION.fullmatch(kind):
        change = change_of(kind, architecture)
        return SourceTensor(wanted.name, shape_after, F32, lambda: raw(change(moved(floats(stored)))))
    load = (lambda: raw(moved(items(stored)))) if reorder else stored.load
    return SourceTensor(wanted.name, shape_after, TYPES[stored.dtype], load)


def change_of(kind: str, architecture: Architecture) -> Callable[[Floats], Floats]:
    """What is computed of a tensor in F32: rates of forgetting are stored as logarithms, norms less an offset."""
    if kind == "ssm_a":
        return lambda values: -np.exp(values)
    offset = np.float32(architecture.norm_offset if kind.endswith("norm") and kind != "ssm_norm" else 0.0)
    return lambda values: values + offset

"""A checkpoint's tensors as GGUF's: other names, rows in another order, vectors in F32.

Everything that the architecture has must be there, in the shape that config.json gives it, and nothing else.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from localinfer.checkpoint import ahead, names
from localinfer.checkpoint.architecture import Architecture
from localinfer.checkpoint.folder import Folder
from localinfer.checkpoint.numbers import Numbers
from localinfer.checkpoint.shapes import shape_of
from localinfer.checkpoint.stored import mxfp4, nvfp4, ternary
from localinfer.checkpoint.stored.reorder import OF_COLUMNS, Reorder, transposed
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
MXFP4, NVFP4 = (next(n for n, kind in ggml.TYPES.items() if kind.name == name) for name in ("MXFP4", "NVFP4"))
ALWAYS_F32 = re.compile(  # even those that are matrices
    r".*norm(_2)?|position_embd|token_types|ffn_gate_inp(_shexp)?|altup_(predict|correct)_coef|ssm_a"
    r"|time_mix_(lerp_fused|r_k|w[12])"
)
CONVOLUTION = re.compile(r".*\.conv|ssm_conv1d")  # a filter for each column: checkpoints keep a dimension of 1 between
BLOCK = re.compile(r"blk\.\d+\.")
NO_BLOCK = -1


class Wanted(NamedTuple):
    """A tensor that there must be, of a block or of none (NO_BLOCK): `kind` is its name without that and ".weight",
    which the `bare` ones do not have."""

    block: int
    kind: str
    bare: tuple[str, ...] = ()

    @property
    def prefix(self) -> str:
        return f"blk.{self.block}." if self.block != NO_BLOCK else ""

    def numbers(self, numbers: Numbers) -> Numbers:
        """Those of its block."""
        return numbers.of_block(self.block) if self.block != NO_BLOCK else numbers

    def may_lack(self, numbers: Numbers) -> bool:
        """Whether there need not be one."""
        return self.block != NO_BLOCK and self.kind in numbers.lacks(self.block)

    def part_of(self, architecture: Architecture, present: Present) -> str:
        """The kind of the checkpoint's tensor that holds it, unless it is there for itself."""
        whole = architecture.parts.get(self.kind, self.kind)
        return self.kind if self.name in present and self.named(whole) not in present else whole

    def named(self, kind: str) -> str:
        whole = kind.endswith((".bias", ".scale")) or kind in self.bare
        return f"{self.prefix}{kind}" if whole else f"{self.prefix}{kind}.weight"

    @property
    def name(self) -> str:
        return self.named(self.kind)


def convert(
    folder: Folder, architecture: Architecture, numbers: Numbers, stored: Mapping[str, Stored]
) -> dict[str, SourceTensor]:
    """All tensors of the GGUF file by name; their bytes are read, and changed, when they are asked for.

    Raises LocalInferError naming the tensor that is missing or has another shape, Unsupported one that is foreign.
    """
    present = names.present(architecture, numbers, stored)
    left = dict(present)
    tensors: dict[str, SourceTensor] = {}
    for wanted in expected(architecture, numbers, present):
        part, here = wanted.part_of(architecture, present), wanted.numbers(numbers)
        source = wanted.named(part)
        blocks, scales = (source.replace(".weight", ending) for ending in (".blocks", ".scales"))
        if wanted.kind in architecture.mxfp4 and {blocks, scales} <= present.keys():
            shape, rows = shape_of(wanted.kind, architecture.sizes, here), architecture.mxfp4[wanted.kind]
            load = mxfp4.repacked(present[blocks], present[scales], shape, rows)
            tensors[wanted.name] = SourceTensor(wanted.name, shape, MXFP4, load)
            left = {name: tensor for name, tensor in left.items() if name not in (blocks, scales)}
            continue
        if source not in present and wanted.may_lack(numbers):
            continue
        if source not in present:
            raise folder.error(f"tensor {stored_name(present, source)}: is missing")
        left.pop(source, None)
        if numbers.packed and wanted.kind in architecture.ternary:
            shape, scale = shape_of(wanted.kind, architecture.sizes, here), left.pop(f"{source}_scale", None)
            load = ternary.unpacked(present[source], scale, shape, numbers.packed)
            tensors[wanted.name] = SourceTensor(wanted.name, shape, F32, load)
        else:
            tensors[wanted.name] = converted(present[source], wanted, part, architecture, here)
            if present[source].dtype == nvfp4.DTYPE:
                tensors |= {each.name: each for each in factors_of(wanted, source, present, left)}
    for name, tensor in left.items():
        refuse(tensor, name, architecture, numbers)
    for name, other in architecture.stand_ins.items():
        tensors[name] = replace(tensors[other], name=name)
    for name, factors in numbers.rope.factors.items():
        tensors[name] = SourceTensor(name, factors.shape, F32, partial(raw, factors))
    return tensors


def factors_of(
    wanted: Wanted, source: str, present: Present, left: dict[str, Stored | Stacked]
) -> Iterator[SourceTensor]:
    """The numbers beside a matrix, one for each expert, unless all are 1."""
    for ending in names.FACTORS:
        stored = present.get(source.replace(".weight", ending))
        if stored is not None:
            left.pop(source.replace(".weight", ending), None)
            values = floats(stored)
            if not np.allclose(values, 1, rtol=0, atol=1e-6):
                yield SourceTensor(wanted.name.replace(".weight", ending), values.shape, F32, partial(raw, values))


def expected(architecture: Architecture, numbers: Numbers, present: Present) -> Iterator[Wanted]:
    """Every tensor that there must be; what is optional must be in all blocks, if one has it, but for those blocks that
    predict further tokens."""
    kinds = {BLOCK.sub("", name).removesuffix(".weight") for name in present}
    of_model = [kind for kind in architecture.optional_model if kind in kinds]
    norm = () if architecture.encoder else (architecture.output_norm,)
    embedding = () if architecture.beside else ("token_embd",)
    for kind in (*embedding, *norm, *architecture.model, *of_model):
        yield Wanted(NO_BLOCK, kind)
    optional = [kind for kind in architecture.optional if architecture.parts.get(kind, kind) in kinds]
    for block in range(numbers.n_layer + numbers.n_ahead):
        branch = architecture.mixture if numbers.has_experts(block) else architecture.dense
        own = architecture.kinds[numbers.kinds[block]] if architecture.kinds else ()
        for kind in (*architecture.block, *(architecture.not_first if block else ()), *branch, *own):
            yield Wanted(block, kind, architecture.bare)
        if block < numbers.n_layer:
            yield from (Wanted(block, kind, architecture.bare) for kind in optional)
        else:
            yield from (Wanted(block, kind) for kind in ahead.NEEDED)
            further = (Wanted(block, kind, architecture.bare) for kind in (*optional, *ahead.OPTIONAL))
            yield from (each for each in further if each.named(each.part_of(architecture, present)) in present)
    if not (numbers.tied or architecture.encoder or architecture.beside):
        yield Wanted(NO_BLOCK, "output")


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


def converted(
    stored: Stored | Stacked, wanted: Wanted, part: str, architecture: Architecture, numbers: Numbers
) -> SourceTensor:
    """A matrix keeps its type, in which its values are moved only; a vector, which is a norm or a bias, becomes F32.
    `part` is the kind of what is stored: another one where that holds several, and then the order tells which of it."""
    kind = wanted.kind
    apart = kind in architecture.parts and part == kind
    reorder = None if apart else architecture.reorder.get(kind)
    shape = shape_of(part, architecture.sizes, numbers)
    shape = (*shape[:-2], *shape[:-3:-1]) if reorder is transposed else shape
    shape = (shape[0], 1, *shape[1:]) if CONVOLUTION.fullmatch(kind) else shape
    if stored.shape != shape:
        raise stored.error(f"has shape {list(stored.shape)}, not {list(shape)}")
    if stored.dtype == nvfp4.DTYPE:
        if reorder in OF_COLUMNS:
            raise stored.error("has rows that must change, and is NVFP4, which is not supported", Unsupported)
        rows = partial(in_rows, stored, reorder, numbers)
        return SourceTensor(wanted.name, shape_of(kind, architecture.sizes, numbers), NVFP4, rows)
    if stored.dtype not in TYPES:
        raise stored.error(f"type {stored.dtype} is not supported (only {', '.join(TYPES)})", Unsupported)

    def moved(values: Values) -> Values:
        return reorder(values.reshape(shape), numbers) if reorder else values

    shape_after = shape_of(kind, {**architecture.sizes, **architecture.folded}, numbers)
    if kind == "position_embd":
        shape_after = numbers.n_ctx, numbers.n_embd
    if kind in architecture.ternary:
        return SourceTensor(wanted.name, shape_after, F32, lambda: raw(ternary.rounded(floats(stored))))
    if len(shape) == 1 or kind.endswith(".bias") or ALWAYS_F32.fullmatch(kind) or CONVOLUTION.fullmatch(kind):
        change = change_of(kind, architecture)
        return SourceTensor(wanted.name, shape_after, F32, lambda: raw(change(moved(floats(stored)))))
    if kind in numbers.factors:
        factor = numbers.factors[kind]
        return SourceTensor(wanted.name, shape_after, F32, lambda: raw(moved(floats(stored)).reshape(shape) * factor))
    load = (lambda: raw(moved(items(stored)))) if reorder else stored.load
    return SourceTensor(wanted.name, shape_after, TYPES[stored.dtype], load)


def in_rows(stored: Stored | Stacked, reorder: Reorder | None, numbers: Numbers) -> Values:
    """The bytes of a matrix, or of many, whose rows change places."""
    rows = stored.load().reshape(*stored.shape[:-1], -1)
    return raw(reorder(rows, numbers) if reorder else rows)


def change_of(kind: str, architecture: Architecture) -> Callable[[Floats], Floats]:
    """What is computed of a tensor in F32: rates of forgetting are stored as logarithms, norms less an offset."""
    if kind == "ssm_a":
        return lambda values: -np.exp(values)
    offset = np.float32(architecture.norm_offset if kind.endswith("norm") and kind != "ssm_norm" else 0.0)
    return lambda values: values + offset

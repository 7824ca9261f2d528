"""The plan of a quantization: a type for each tensor of a source, and the metadata of the new file.

Requests that would give a useless file are rejected before any work is done. Nothing is encoded here.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import LocalInferError
from localinfer.escaping import printable
from localinfer.gguf.file_types import FILE_TYPE
from localinfer.gguf.imatrix_file import Imatrix, read_imatrix
from localinfer.gguf.source import Field, Source, SourceTensor
from localinfer.quantization.prune import MTP_LAYERS_KEY, renumber_layers
from localinfer.quantization.recipe_rules import EMBEDDINGS
from localinfer.quantization.recipes import (
    COPY,
    FLOATS,
    RECIPES,
    Choice,
    Traits,
    TypeOverrides,
    choose_types,
    compatible_type,
    layer_of,
    requires_imatrix,
)
from localinfer.quantization.tensor_scales import TensorScales
from quant import FORMATS, ggml
from quant.encoders.covariance import Covariance

IMATRIX_DATASET, IMATRIX_CHUNKS = "quantize.imatrix.dataset", "quantize.imatrix.chunks_count"
QUANTIZATION_VERSION = 2  # of ggml's block formats
FALLBACK_TYPE = "Q4_K"  # for matrices that may not have an entry in the importance matrix

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Request:
    """A quantization request. `recipe` is a name in `localinfer.quantization.recipes`; `fields` override the metadata.

    Entries of the importance matrix with one of `excluded` in their names are ignored; if `included` is not empty, so
    are all entries without one of these. The importance matrix still has the layers that were `pruned` from the source,
    under their old numbers. `calibrated`: the importance of every matrix will be measured during quantization.
    """

    recipe: str
    overrides: TypeOverrides = field(default_factory=TypeOverrides)
    allow_requantize: bool = False
    fields: Mapping[str, Field] = field(default_factory=dict)
    imatrix: Path | None = None
    included: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    pruned: tuple[int, ...] = ()
    calibrated: bool = False


@dataclass(frozen=True, slots=True)
class QuantizationPlan:
    """The types and metadata of the model to write. `problem` is the reason not to write it, if there is one.

    `importance` maps tensor names to the weights of the columns' errors, float32 (matrices, n). `components` maps names
    to the principal components of the inputs, (n, r), and `covariances` to their covariance, which is that of inputs
    not yet divided by the factors in `scales` of the columns.
    """

    source: Source
    choices: Mapping[str, Choice]
    fields: Mapping[str, Field]
    importance: Mapping[str, Floats]
    components: Mapping[str, Floats]
    covariances: Mapping[str, Covariance]
    problem: LocalInferError | None
    scales: Mapping[str, TensorScales] = field(default_factory=dict)

    @property
    def types(self) -> dict[str, int]:
        """The ggml type number of each tensor."""
        return {name: ggml.TYPE_NUMBERS[choice.type] for name, choice in self.choices.items()}

    @property
    def old_types(self) -> set[int]:
        """The ggml type numbers of the source's tensors."""
        return {tensor.type for tensor in self.source.tensors.values()}

    @property
    def changed_types(self) -> set[int]:
        """The types to which tensors are converted."""
        return {number for name, number in self.types.items() if number != self.source.tensors[name].type}

    @property
    def tensors_without_importance(self) -> list[str]:
        """Quantized matrices in layers for which the importance matrix, if there is one, has no entry."""
        return [
            name
            for name, choice in self.choices.items()
            if self.importance and name.startswith("blk.") and name not in self.importance
            if choice.type not in FLOATS and ggml.TYPE_NUMBERS[choice.type] in FORMATS
        ]


def make_plan(source: Source, request: Request) -> QuantizationPlan:
    """Return the plan for a request. Raises LocalInferError if the importance matrix does not fit the source."""
    more = dict(request.fields)
    importance: dict[str, Floats] = {}
    components: dict[str, Floats] = {}
    covariances: dict[str, Covariance] = {}
    if request.imatrix:
        imatrix = read_imatrix(request.imatrix)
        imatrix = replace(imatrix, entries=renumber_layers(imatrix.entries, request.pruned))
        importance = importance_for(source, imatrix, request.included, request.excluded)
        components = components_for(source, imatrix, importance)
        covariances = covariances_for(source, imatrix, importance)
        more = fields_of_imatrix(request.imatrix, imatrix) | more
    fields = fields_for(source, request.recipe, more)
    model = read_traits(source, request.fields, bool(importance) or request.calibrated)
    choices = choose_types(request.recipe, model, source.tensors.values(), request.overrides)
    if request.imatrix:
        choices |= mtp_fallback_types(source, choices, model, request, importance)
    problem = _find_problem(source, choices, request, importance)
    return QuantizationPlan(source, choices, fields, importance, components, covariances, problem)


def mtp_fallback_types(
    source: Source, choices: Mapping[str, Choice], model: Traits, request: Request, importance: Mapping[str, Floats]
) -> dict[str, Choice]:
    """Return other types for matrices of MTP layers that need an importance matrix but have no entry in it.

    Draft tokens are verified, so a simple choice is good enough.
    """
    first = model.n_layer - model.n_mtp_layers
    return {
        name: Choice(compatible_type(source.tensors[name], FALLBACK_TYPE), FALLBACK_TYPE)
        for name, choice in choices.items()
        if layer_of(name, -1) >= first and name not in importance and request.overrides.type_for(name) is None
        if requires_imatrix(request.recipe, name, choice.type)
    }


def with_types(plan: QuantizationPlan, request: Request, types: Mapping[str, str]) -> QuantizationPlan:
    """Return the plan with other types, by name, for some tensors, and with the request's recipe in the metadata."""
    choices = {**plan.choices, **{name: Choice(kind, kind) for name, kind in types.items()}}
    file_type = Field.uint32(RECIPES[request.recipe].number)
    fields = {**plan.fields, FILE_TYPE: file_type, **request.fields}
    problem = _find_problem(plan.source, choices, request, plan.importance)
    return replace(plan, choices=choices, fields=fields, problem=problem)


def _find_problem(
    source: Source, choices: Mapping[str, Choice], request: Request, importance: Mapping[str, Floats]
) -> LocalInferError | None:
    """Return an error for the first tensor that cannot or should not have its type."""
    for name, choice in choices.items():
        if problem := _problem_of_tensor(
            source.tensors[name], choice.type, request, request.calibrated or name in importance
        ):
            return _error(source, name, problem)
    return None


def _problem_of_tensor(tensor: SourceTensor, new: str, request: Request, weighted: bool) -> str:
    old = tensor.type_name
    if old == new:
        return ""
    if tensor.type not in FORMATS:
        return f"cannot convert {old} to {new}"
    if old not in FLOATS and not request.allow_requantize:
        option = "allow_requantize (--allow-requantize)"
        return f"is already {old}; {option} converts it to {new}, with more loss than from 16 bits"
    if requires_imatrix(request.recipe, tensor.name, new) and not weighted:
        return (
            f"{new} needs an importance matrix with this tensor: "
            "`localinfer imatrix MODEL -f TEXT -o FILE` creates one for imatrix (--imatrix); or use --calibrate TEXT"
        )
    return ""


def read_traits(source: Source, more: Mapping[str, Field], weighted: bool) -> Traits:
    """Return the properties of a model that recipes depend on. Missing numbers get simple defaults."""
    fields = {**source.fields, **more}
    architecture = fields.get("general.architecture")
    value = architecture.value if architecture else None
    if not isinstance(value, bytes):
        raise _error(source, "general.architecture", "is missing")
    name = value.decode("utf-8", "replace")

    def number(key: str, default: int) -> int:
        return _integer(fields.get(f"{name}.{key}"), default)

    heads = number("attention.head_count", 1)
    groups = number("attention.head_count_kv", heads)
    n_mtp_layers = number(MTP_LAYERS_KEY, 0)
    return Traits(name, number("block_count", 0), heads, groups, number("expert_count", 0), weighted, n_mtp_layers)


def _integer(field: Field | None, default: int) -> int:
    """Return a number, or the first element of an array (the value of the first layer)."""
    value = field.value if field else None
    if isinstance(value, np.ndarray) and value.size:
        value = value[0].item()
    return value if isinstance(value, int) else default


# --- importance ---


def importance_for(
    source: Source, imatrix: Imatrix, included: tuple[str, ...], excluded: tuple[str, ...]
) -> dict[str, Floats]:
    """Return the importance of tensors of the source: float32 (matrices, n), by name.

    Raises LocalInferError if an entry does not have the size of its tensor.
    """
    importance: dict[str, Floats] = {}
    for name, entry in imatrix.entries.items():
        tensor = source.tensors.get(name)
        wanted = not included or any(text in name for text in included)
        if tensor is None or not wanted or any(text in name for text in excluded):
            continue
        n = tensor.shape[-1]
        expected = math.prod(tensor.shape[:-2]) * n
        if entry.means.size == expected:
            importance[name] = np.ascontiguousarray(entry.means.reshape(-1, n))
        elif name not in EMBEDDINGS:
            problem = f"has {entry.means.size} values in the importance matrix, but {expected} columns"
            raise _error(source, name, f"{problem}: it belongs to another model")
    if not importance:
        raise LocalInferError(f"{printable(str(source.path))}: the importance matrix has none of its tensors")
    return importance


def components_for(source: Source, imatrix: Imatrix, importance: Mapping[str, Floats]) -> dict[str, Floats]:
    """Return the scaled principal components of the inputs, (n, r), by tensor name, where they are known.

    Only matrices that have an importance and no experts have them. Matrices that share inputs share the array.
    """
    entries = {name: imatrix.entries[name] for name in importance if len(source.tensors[name].shape) == 2}
    scaled = {
        entry.components: entry.components.rows.T / np.sqrt(max(entry.counts[0], 1))
        for entry in entries.values()
        if entry.components
    }
    return {name: scaled[entry.components] for name, entry in entries.items() if entry.components}


def covariances_for(source: Source, imatrix: Imatrix, importance: Mapping[str, Floats]) -> dict[str, Covariance]:
    """Return the covariance of the inputs, by tensor name, where it is known.

    Only matrices that have an importance and no experts have one.
    """
    stored = {name: imatrix.entries[name].covariance for name in importance if len(source.tensors[name].shape) == 2}
    return {name: covariance for name, covariance in stored.items() if covariance is not None}


# --- metadata ---


def fields_for(source: Source, recipe: str, more: Mapping[str, Field]) -> dict[str, Field]:
    """Return the source's metadata with the new file type and version and with `more`.

    Existing keys keep their positions.
    """
    new: dict[str, Field] = {}
    if recipe != COPY:
        new[FILE_TYPE] = Field.uint32(RECIPES[recipe].number)
        new["general.quantization_version"] = Field.uint32(QUANTIZATION_VERSION)
    return {**source.fields, **new, **more}


def fields_of_imatrix(path: Path, imatrix: Imatrix) -> dict[str, Field]:
    """Return metadata about the importance matrix, under llama.cpp's keys."""
    fields = {
        "quantize.imatrix.file": Field.text(str(path).encode("utf-8", "surrogateescape")),
        "quantize.imatrix.entries_count": Field.uint32(len(imatrix.entries)),
    }
    if imatrix.datasets:
        fields[IMATRIX_DATASET] = Field.text(imatrix.datasets[0])
    if imatrix.chunk_count:
        fields[IMATRIX_CHUNKS] = Field.uint32(imatrix.chunk_count)
    return fields


# --- parsing of options ---


def parse_type(text: str) -> str:
    """Parse the name of a tensor type, in any case. Raises ValueError that lists the known names."""
    name = text.upper()
    if ggml.TYPE_NUMBERS.get(name) not in FORMATS:
        known = ", ".join(ggml.TYPES[number].name for number in FORMATS)
        raise ValueError(f"{text!r} is not a tensor type; known types: {known}")
    return name


def parse_pattern(text: str) -> tuple[re.Pattern[str], str]:
    """Parse REGEX=TYPE. Raises ValueError."""
    pattern, equals, kind = text.rpartition("=")
    if not equals or not pattern:
        raise ValueError(f"must be REGEX=TYPE, not {text!r}")
    try:
        return re.compile(pattern.lower()), parse_type(kind)
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None


def _error(source: Source, name: str, problem: str) -> LocalInferError:
    return LocalInferError(f"{printable(str(source.path))}: {printable(name, 80)}: {problem}")

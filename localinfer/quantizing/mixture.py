"""What a user asks for, made precise: a type for each tensor of a source, and the metadata of the new file.

Refuses what would give a useless file, before any work is done. Knows recipes and importance matrices; nothing is
encoded here.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localinfer.errors import LocalInferError
from localinfer.files.imatrix_file import Imatrix, read_imatrix
from localinfer.files.source import Field, Source, SourceTensor
from localinfer.quantizing.prune import renumbered
from localinfer.quantizing.recipe_rules import EMBEDDINGS, NUMBER_OF_TYPE
from localinfer.quantizing.recipes import (
    COPY,
    FLOATS,
    RECIPES,
    Choice,
    Traits,
    Wishes,
    choose,
    fitting,
    layer_of,
    requires_imatrix,
)
from localinfer.text import printable
from quant import FORMATS, ggml
from quant.encoders.covariance import Covariance

QUANTIZATION_VERSION = 2  # of ggml's block formats
WITHOUT_IMPORTANCE = "Q4_K"  # the type of matrices of which an importance matrix may know nothing

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Request:
    """`recipe` is a name of `localinfer.quantizing.recipes`; `fields` are put over the source's metadata.

    Of the importance matrix, entries with one of `excluded` in their names are left out; if any are `included`, all
    others are. The layers that were `pruned` from the source are still in it, under their old numbers. `calibrated`:
    which columns matter will be known of every matrix when it is its turn.
    """

    recipe: str
    wishes: Wishes = field(default_factory=Wishes)
    allow_requantize: bool = False
    fields: Mapping[str, Field] = field(default_factory=dict)
    imatrix: Path | None = None
    included: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    pruned: tuple[int, ...] = ()
    calibrated: bool = False


@dataclass(frozen=True, slots=True)
class Mixture:
    """A model as it shall be. `problem` is why it should not be written.

    `importance` says of some tensors, float32 (matrices, n), how much each column's error counts; `directions` of some
    of those, (n, r), are the few in which inputs have most of their power; `covariances` say which go together.
    """

    source: Source
    choices: Mapping[str, Choice]
    fields: Mapping[str, Field]
    importance: Mapping[str, Floats]
    directions: Mapping[str, Floats]
    covariances: Mapping[str, Covariance]
    problem: LocalInferError | None

    @property
    def types(self) -> dict[str, int]:
        """ggml's number of each tensor's type."""
        return {name: NUMBER_OF_TYPE[choice.type] for name, choice in self.choices.items()}

    @property
    def old_types(self) -> set[int]:
        return {tensor.type for tensor in self.source.tensors.values()}

    @property
    def changed_types(self) -> set[int]:
        """The types that tensors are turned into."""
        return {number for name, number in self.types.items() if number != self.source.tensors[name].type}

    @property
    def unweighted(self) -> list[str]:
        """The layers' matrices that become blocks and that the importance matrix, if there is one, knows nothing of."""
        return [
            name
            for name, choice in self.choices.items()
            if self.importance and name.startswith("blk.") and choice.type not in FLOATS and name not in self.importance
        ]


def mix(source: Source, request: Request) -> Mixture:
    """What a request makes of a source. Raises LocalInferError for an importance matrix that cannot be used."""
    more = dict(request.fields)
    importance: dict[str, Floats] = {}
    directions: dict[str, Floats] = {}
    covariances: dict[str, Covariance] = {}
    if request.imatrix:
        imatrix = read_imatrix(request.imatrix)
        imatrix = replace(imatrix, entries=renumbered(imatrix.entries, request.pruned))
        importance = importance_for(source, imatrix, request.included, request.excluded)
        directions = directions_for(source, imatrix, importance)
        covariances = covariances_for(source, imatrix, importance)
        more = fields_of_imatrix(request.imatrix, imatrix) | more
    fields = fields_for(source, request.recipe, more)
    model = traits_of(source, request.fields, bool(importance) or request.calibrated)
    choices = choose(request.recipe, model, source.tensors.values(), request.wishes)
    if request.imatrix:
        choices |= unmeasured_ahead(source, choices, model, request, importance)
    problem = _problem(source, choices, request, importance)
    return Mixture(source, choices, fields, importance, directions, covariances, problem)


def unmeasured_ahead(
    source: Source, choices: Mapping[str, Choice], model: Traits, request: Request, importance: Mapping[str, Floats]
) -> dict[str, Choice]:
    """Other types for matrices that predict further tokens, which an importance matrix knows nothing of, where those
    chosen are worth nothing without. What they compute is only a guess."""
    first = model.n_layer - model.n_ahead
    return {
        name: Choice(fitting(source.tensors[name], WITHOUT_IMPORTANCE), WITHOUT_IMPORTANCE)
        for name, choice in choices.items()
        if layer_of(name, -1) >= first and name not in importance and request.wishes.of(name) is None
        if requires_imatrix(request.recipe, name, choice.type)
    }


def changed(mixture: Mixture, request: Request, types: Mapping[str, str]) -> Mixture:
    """The mixture with other types, by name, for some tensors; the file says that it has the request's recipe."""
    choices = {**mixture.choices, **{name: Choice(kind, kind) for name, kind in types.items()}}
    file_type = Field.uint32(RECIPES[request.recipe].number)
    fields = {**mixture.fields, "general.file_type": file_type, **request.fields}
    problem = _problem(mixture.source, choices, request, mixture.importance)
    return replace(mixture, choices=choices, fields=fields, problem=problem)


def _problem(
    source: Source, choices: Mapping[str, Choice], request: Request, importance: Mapping[str, Floats]
) -> LocalInferError | None:
    """The first tensor that cannot have its type, or that nobody would want to have it."""
    for name, choice in choices.items():
        if problem := _problem_of(source.tensors[name], choice.type, request, request.calibrated or name in importance):
            return _error(source, name, problem)
    return None


def _problem_of(tensor: SourceTensor, new: str, request: Request, weighted: bool) -> str:
    old = tensor.type_name
    if old == new:
        return ""
    if tensor.type not in FORMATS:
        return f"{old} cannot be turned into {new}"
    if old not in FLOATS and not request.allow_requantize:
        return f"is {old} already; --allow-requantize makes it {new}, which costs more quality than from 16 bits"
    if requires_imatrix(request.recipe, tensor.name, new) and not weighted:
        return (
            f"{new} is worth nothing without an importance matrix of this tensor: "
            "`localinfer imatrix MODEL -f TEXT -o FILE` makes one, --imatrix FILE uses it; or give --calibrate TEXT"
        )
    return ""


def traits_of(source: Source, more: Mapping[str, Field], weighted: bool) -> Traits:
    """What recipes want to know of a model; a number that the file does not say is that of the simplest model."""
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
    n_ahead = number("nextn_predict_layers", 0)
    return Traits(name, number("block_count", 0), heads, groups, number("expert_count", 0), weighted, n_ahead)


def _integer(field: Field | None, default: int) -> int:
    """A number, or the first of an array: that of the first layer."""
    value = field.value if field else None
    if isinstance(value, np.ndarray) and value.size:
        value = value[0].item()
    return value if isinstance(value, int) else default


# --- importance ---


def importance_for(
    source: Source, imatrix: Imatrix, included: tuple[str, ...], excluded: tuple[str, ...]
) -> dict[str, Floats]:
    """For tensors of the source, float32 (matrices, n): how much each column's error counts.

    Raises LocalInferError for an entry of another size than its tensor.
    """
    found: dict[str, Floats] = {}
    for name, entry in imatrix.entries.items():
        tensor = source.tensors.get(name)
        wanted = not included or any(text in name for text in included)
        if tensor is None or not wanted or any(text in name for text in excluded):
            continue
        n = tensor.shape[-1]
        expected = math.prod(tensor.shape[:-2]) * n
        if entry.means.size == expected:
            found[name] = np.ascontiguousarray(entry.means.reshape(-1, n))
        elif name not in EMBEDDINGS:
            problem = f"has {entry.means.size} values in the importance matrix, but {expected} columns"
            raise _error(source, name, f"{problem}: it was made with another model")
    if not found:
        raise LocalInferError(f"{printable(str(source.path))}: no tensor is in the importance matrix")
    return found


def directions_for(source: Source, imatrix: Imatrix, importance: Mapping[str, Floats]) -> dict[str, Floats]:
    """Of the matrices that have an importance, and no experts, the main directions of their inputs, (n, r), if they are
    known; the same array for matrices that share them."""
    known = {name: imatrix.entries[name] for name in importance if len(source.tensors[name].shape) == 2}
    scaled = {
        entry.directions: entry.directions.rows.T / np.sqrt(max(entry.counts[0], 1))
        for entry in known.values()
        if entry.directions
    }
    return {name: scaled[entry.directions] for name, entry in known.items() if entry.directions}


def covariances_for(source: Source, imatrix: Imatrix, importance: Mapping[str, Floats]) -> dict[str, Covariance]:
    """Of the matrices that have an importance, and no experts, the covariance of their inputs, if it is known."""
    known = {name: imatrix.entries[name].covariance for name in importance if len(source.tensors[name].shape) == 2}
    return {name: covariance for name, covariance in known.items() if covariance is not None}


# --- metadata ---


def fields_for(source: Source, recipe: str, more: Mapping[str, Field]) -> dict[str, Field]:
    """The source's metadata with what is new, and what is `more`, in the places of what was there."""
    new: dict[str, Field] = {}
    if recipe != COPY:
        new["general.file_type"] = Field.uint32(RECIPES[recipe].number)
        new["general.quantization_version"] = Field.uint32(QUANTIZATION_VERSION)
    return {**source.fields, **new, **more}


def fields_of_imatrix(path: Path, imatrix: Imatrix) -> dict[str, Field]:
    """Where the importance matrix came from, under the keys that llama.cpp has for it."""
    fields = {
        "quantize.imatrix.file": Field.text(str(path).encode("utf-8", "surrogateescape")),
        "quantize.imatrix.entries_count": Field.uint32(len(imatrix.entries)),
    }
    if imatrix.datasets:
        fields["quantize.imatrix.dataset"] = Field.text(imatrix.datasets[0])
    if imatrix.chunk_count:
        fields["quantize.imatrix.chunks_count"] = Field.uint32(imatrix.chunk_count)
    return fields


# --- what users write ---


def parsed_type(text: str) -> str:
    """A tensor type by name, in any case. Raises ValueError with the names that there are."""
    name = text.upper()
    if NUMBER_OF_TYPE.get(name) not in FORMATS:
        known = ", ".join(ggml.TYPES[number].name for number in FORMATS)
        raise ValueError(f"{text!r} is no tensor type; there are {known}")
    return name


def parsed_pattern(text: str) -> tuple[re.Pattern[str], str]:
    """REGEX=TYPE. Raises ValueError."""
    pattern, equals, kind = text.rpartition("=")
    if not equals or not pattern:
        raise ValueError(f"must be REGEX=TYPE, not {text!r}")
    try:
        return re.compile(pattern.lower()), parsed_type(kind)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from None


def parsed_field(text: str) -> tuple[str, Field]:
    """KEY=TYPE:VALUE, TYPE one of int, float, bool, str. Raises ValueError."""
    key, equals, typed = text.partition("=")
    kind, colon, value = typed.partition(":")
    if key == "general.alignment":
        raise ValueError(f"{key} decides where the tensors lie: it cannot be another one")
    if not key or not key.isascii() or not equals or not colon or kind not in MAKERS:
        raise ValueError(f"must be KEY=TYPE:VALUE with TYPE one of {', '.join(MAKERS)}, not {text!r}")
    try:
        return key, MAKERS[kind](value)
    except (ValueError, OverflowError, KeyError):
        raise ValueError(f"{value!r} is no {kind}") from None


def _whole_number(text: str) -> Field:
    number = int(text)
    return Field.uint32(number) if number >= 0 else Field.number(number, "<i4")


MAKERS = {
    "int": _whole_number,
    "float": lambda text: Field.float32(float(text)),
    "bool": lambda text: Field.flag({"true": True, "false": False}[text.lower()]),
    "str": Field.text,
}


def _error(source: Source, name: str, problem: str) -> LocalInferError:
    return LocalInferError(f"{printable(str(source.path))}: {printable(name, 80)}: {problem}")

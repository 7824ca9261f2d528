"""The command `localinfer inspect`: the metadata, tensors and memory use of a model file.

Text from a model file is untrusted: control characters are escaped, and markup is not interpreted. The weights are not
read.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from cli.arguments.flags import OVERRIDES, JsonOption, ModelArgument, with_options
from cli.models.loading import find_or_fetch
from cli.models.parts import PartOptions, show_part
from cli.models.points import show_points
from cli.models.projector_report import is_projector, projector_rows
from cli.models.recognizer_report import is_recognizer, recognizer_rows
from cli.models.shown_fields import SHOWN_CHARACTERS, SHOWN_VALUES, format_value
from cli.terminal import screen
from cli.terminal.tables import table
from localinfer.chat_template.template_selection import template_keys
from localinfer.errors import NotEnoughMemoryError, UnsupportedError
from localinfer.escaping import printable
from localinfer.gguf.overrides import open_overridden
from localinfer.gguf.reader import GGUF, StringArray, Tensor, Value
from localinfer.hub.projectors import find_projector, kinds_text, media_kinds, projector_of
from localinfer.options import Layer, Options, from_environment, merge, parse_memory
from localinfer.runtime.memory_limit import NO_EFFECT

if TYPE_CHECKING:
    from localinfer.runtime.expert_cache.plan import ExpertPlan

TEMPLATE = "tokenizer.chat_template"

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


@with_options(names=("ctx_size", "cache_type_k", "cache_type_v", "mmap", "memory", "mmproj", *OVERRIDES))
def inspect_command(model: ModelArgument, given: Layer, part: PartOptions, as_json: JsonOption = False) -> None:
    """Show the metadata, tensors and memory use of a model file.

    The memory is that of a context of --ctx-size tokens; --memory shows how many experts fit in it. Metadata that
    options override are shown with the new values.
    With --modelfile, --template, --parameters, --system or --license, only that part is printed, as `ollama show` does.
    --points lists the names of the activations, also of the projector.

    \b
    Examples:
      localinfer inspect smollm2
      localinfer inspect model.gguf -c 8192 -ctk q8_0 -ctv q8_0
      localinfer inspect model.gguf --json
      localinfer inspect mixture.gguf --memory 8G
      localinfer inspect mmproj.gguf
      localinfer inspect model.gguf --points
      localinfer inspect model.gguf --mmproj mmproj.gguf --points
      localinfer show smollm2 --modelfile > Modelfile
    """
    wanted = part.wanted(as_json=as_json)
    path = find_or_fetch(model, screen.Status())
    options = merge(given, from_environment(os.environ))
    if wanted == "points":
        show_points(path, options, projector_of(model, path, options), as_json=as_json)
    elif wanted:
        show_part(model, path, wanted)
    else:
        inspect(path, options, as_json, find_projector(model, path))


def inspect(path: Path, options: Options, as_json: bool, projector: Path | None = None) -> None:
    """Print the report of a file to stdout. `projector` is the file with which the model reads images or sounds.

    Raises LocalInferError for a damaged file, and UsageError for an override that does not fit it, before anything is
    printed. A file with an unsupported architecture is shown without the memory estimate.
    """
    f = open_overridden(path, options)
    memory = estimate_memory(f, options)
    if options.memory and not memory.problem and memory.experts is None:
        screen.warn(NO_EFFECT)
    if is_projector(f):
        projector = None  # another one that lies beside it
    if as_json:
        screen.write(json.dumps(as_object(f, memory) | projector_object(projector), indent=1) + "\n")
    else:
        screen.write("\n".join(as_text(f, memory, projector)) + "\n")


@dataclass(frozen=True)
class MemoryEstimate:
    """The memory in bytes, by purpose, for a context of `ctx_size` tokens (0: the default), or a `problem`.

    `active_weights` is the size of the weights that a token is multiplied with. In a memory-mapped file, the other
    weights (inactive experts) may stay on disk. `experts` is the plan for them, if the memory is limited.
    """

    ctx_size: int
    sizes: dict[str, int]
    active_weights: int = 0
    problem: str = ""
    is_encoder: bool = False
    experts: "ExpertPlan | None" = None

    @property
    def minimum(self) -> int:
        return self.total - self.sizes.get("weights", 0) + self.active_weights

    @property
    def total(self) -> int:
        return sum(self.sizes.values())


def estimate_memory(f: GGUF, options: Options) -> MemoryEstimate:
    from localinfer.graph.mixture_of_experts import active_parameters
    from localinfer.runtime.requirements import memory_requirements

    if is_projector(f) or is_recognizer(f):
        weights = sum(tensor.nbytes for tensor in f.tensors.values())
        return MemoryEstimate(0, {"weights": weights}, weights, is_encoder=True)
    try:
        needed = memory_requirements(f, options)
        active = active_parameters(f)[1] if options.mmap else needed["weights"]
    except UnsupportedError as error:
        return MemoryEstimate(options.ctx_size, {}, problem=printable(str(error)))
    try:
        return MemoryEstimate(options.ctx_size, needed, active, experts=expert_plan(f, options))
    except NotEnoughMemoryError as error:
        return MemoryEstimate(options.ctx_size, {}, problem=printable(str(error)))


def expert_plan(f: GGUF, options: Options) -> "ExpertPlan | None":
    """Return how many experts are cached within --memory; None without it, or if the model has no experts."""
    if not options.memory:
        return None
    from localinfer.runtime.expert_cache.plan import plan_experts
    from localinfer.runtime.graph_building import build_graph_within_memory
    from localinfer.runtime.memory_limit import memory_for_weights

    model = build_graph_within_memory(memory_for_weights(f, options), f, options)
    return plan_experts(f, model, parse_memory(options.memory)) if model.expert_layers else None


def parameters(f: GGUF) -> dict[str, int]:
    """Return the number of parameters and, for a mixture-of-experts model, of active parameters."""
    from localinfer.graph.mixture_of_experts import active_parameters

    total, active = sum(tensor.n_elements for tensor in f.tensors.values()), active_parameters(f)[0]
    return {"total": total} if active == total else {"total": total, "active": active}


@dataclass(frozen=True)
class TypeSummary:
    """All tensors of one quantization type."""

    type_name: str
    tensors: list[Tensor]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.nbytes / sum(tensor.n_elements for tensor in self.tensors)


def type_summaries(f: GGUF) -> list[TypeSummary]:
    """Return the tensors by type, the type with the most bytes first."""
    by_type: dict[str, list[Tensor]] = {}
    for tensor in f.tensors.values():
        by_type.setdefault(tensor.type_name, []).append(tensor)
    return sorted((TypeSummary(*item) for item in by_type.items()), key=lambda summary: -summary.nbytes)


def sha256(template: str) -> str:
    return hashlib.sha256(template.encode()).hexdigest()


# ---- text output -------------------------------------------------------------------------------------------


def as_text(f: GGUF, memory: MemoryEstimate, projector: Path | None = None) -> Iterator[str]:
    """Yield the lines of the report."""
    yield printable(str(f.path))
    files = f" in {len(f.files)} files" * (len(f.files) > 1)
    yield f"GGUF version {f.version}, {f.size:,} bytes{files}, {len(f.metadata)} keys, {len(f.tensors)} tensors"
    yield from projector_lines(projector)
    if f.trailing_bytes:
        yield f"{f.trailing_bytes:,} bytes after the last tensor are unused"
    yield from table(
        "metadata", "<<", [(printable(key, SHOWN_CHARACTERS), format_value(f.metadata[key])) for key in f.metadata]
    )
    if is_projector(f):
        yield from table("encoder", "<>", list(projector_rows(f)))
    if is_recognizer(f):
        yield from table("speech recognition", "<>", list(recognizer_rows(f)))
    yield from table("tensors", "<<<>", map(tensor_row, f.tensors.values()))
    yield from table("types", "<>>>", map(type_row, type_summaries(f)))
    yield from table("parameters", "<>", [(name, f"{number:,}") for name, number in parameters(f).items()])
    yield from table(memory_title(memory), "<>", memory_rows(memory))
    yield from template_lines(f)


def tensor_row(tensor: Tensor) -> Sequence[str]:
    shape = " x ".join(map(str, tensor.shape))
    return printable(tensor.name), shape, tensor.type_name, f"{tensor.nbytes:,} bytes"


def type_row(summary: TypeSummary) -> Sequence[str]:
    count, bits = len(summary.tensors), summary.bits_per_weight
    return summary.type_name, f"{count:,} tensors", f"{summary.nbytes:,} bytes", f"{bits:.2f} bits a weight"


def memory_title(memory: MemoryEstimate) -> str:
    if memory.is_encoder:
        return "memory of the encoder"
    tokens = f"a context of {memory.ctx_size:,} tokens" if memory.ctx_size else "the default context"
    return f"memory for {tokens}"


def memory_rows(memory: MemoryEstimate) -> Iterator[Sequence[str]]:
    if memory.problem:
        yield "not known", memory.problem
        return
    for name, n_bytes in memory.sizes.items():
        yield name, f"{n_bytes:,} bytes"
    yield "together", f"{memory.total:,} bytes"
    if memory.minimum < memory.total:
        yield "at least", f"{memory.minimum:,} bytes"
    if plan := memory.experts:
        yield "cached experts", f"{plan.cached:,} of {plan.experts:,}, {plan.cache_bytes:,} bytes"


def projector_lines(projector: Path | None) -> Iterator[str]:
    """Yield a line that says what the model reads beside text, if anything."""
    if kinds := media_kinds(projector):
        yield f"reads {kinds_text(kinds)}, with the projector {printable(str(projector))}"


def template_lines(f: GGUF) -> Iterator[str]:
    """Yield the lines of each chat template, with control characters escaped."""
    for name, key in template_keys(f).items():
        template = f.get(key, str)
        yield from ("", f"chat template{'' if name == 'default' else f' {printable(name)}'}, sha256 {sha256(template)}")
        yield from (f"  {printable(line)}" for line in template.split("\n"))


# ---- JSON output -------------------------------------------------------------------------------------------


def as_object(f: GGUF, memory: MemoryEstimate) -> dict[str, Json]:
    """Return the report as a JSON object: sizes in bytes, shapes in numpy order, arrays by length and first values."""
    template = f.get(TEMPLATE, str, "")
    return {
        "path": valid_text(str(f.path)),
        "files": [valid_text(str(file.path)) for file in f.files],
        "version": f.version,
        "size": f.size,
        "alignment": f.alignment,
        "data_offset": f.data_offset,
        "trailing": f.trailing_bytes,
        "metadata": {key: as_json_value(value) for key, value in f.metadata.items()},
        "chat_template_sha256": sha256(template) if template else None,
        "tensors": [tensor_object(tensor) for tensor in f.tensors.values()],
        "types": {summary.type_name: type_object(summary) for summary in type_summaries(f)},
        "parameters": {**parameters(f)},
        **({"encoder": encoder_object(f)} if is_projector(f) else {}),
        **({"speech_recognition": recognizer_object(f)} if is_recognizer(f) else {}),
        "memory": None if memory.problem else memory_object(memory),
        "memory_problem": memory.problem or None,
    }


def projector_object(projector: Path | None) -> dict[str, Json]:
    kinds: list[Json] = [*sorted(media_kinds(projector), reverse=True)]
    return {"projector": valid_text(str(projector)) if kinds else None, "reads": kinds}


def encoder_object(f: GGUF) -> Json:
    return {str(label): str(value) for label, value in projector_rows(f)}


def recognizer_object(f: GGUF) -> Json:
    return {str(label): str(value) for label, value in recognizer_rows(f)}


def memory_object(memory: MemoryEstimate) -> Json:
    plan = memory.experts
    experts: dict[str, Json] = (
        {"experts": plan.experts, "cached_experts": plan.cached, "expert_cache": plan.cache_bytes} if plan else {}
    )
    return {"ctx_size": memory.ctx_size, **memory.sizes, "total": memory.total, "least": memory.minimum, **experts}


def as_json_value(value: Value) -> Json:
    if isinstance(value, StringArray):
        strings: list[Json] = [text.decode("utf-8", "backslashreplace") for text in islice(value, SHOWN_VALUES)]
        return {"array": "string", "length": len(value), "first": strings}
    if isinstance(value, np.ndarray):
        numbers: list[Json] = [json_number(number) for number in value[:SHOWN_VALUES].tolist()]
        return {"array": value.dtype.name, "length": len(value), "first": numbers}
    return valid_text(value) if isinstance(value, str) else json_number(value)


def tensor_object(tensor: Tensor) -> Json:
    shape: list[Json] = [*tensor.shape]
    return {
        "name": tensor.name,
        "shape": shape,
        "type": tensor.type_name,
        "bytes": tensor.nbytes,
        "file": tensor.split_index,
        "offset": tensor.offset,
    }


def type_object(summary: TypeSummary) -> Json:
    return {"tensors": len(summary.tensors), "bytes": summary.nbytes, "bits_per_weight": summary.bits_per_weight}


def json_number(number: float) -> int | float | str:
    """Return the number, or a string for NaN and infinity, which JSON does not have."""
    return number if math.isfinite(number) else str(number)


def valid_text(text: str) -> str:
    """Replace bytes that are not UTF-8 by escapes such as `\\xff`."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")

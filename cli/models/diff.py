"""The command `localinfer diff`: the differences of two model files."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.arguments.flags import JsonOption
from cli.models.loading import find_or_fetch
from cli.models.shown_fields import shown_field
from cli.terminal import screen
from cli.terminal.tables import table
from localinfer.machine import resources

if TYPE_CHECKING:
    from localinfer.gguf.difference import FieldDifference, TensorDifference
    from localinfer.gguf.source import SourceTensor

SHOWN = 20  # tensors, the worst first
DIFFERENT = 1  # exit code of --exit-code


def diff_command(
    first: Annotated[str, typer.Argument(metavar="MODEL", help="Path of a GGUF file, or a model name.")],
    second: Annotated[str, typer.Argument(metavar="OTHER", help="The model to compare with it.")],
    metadata_only: Annotated[bool, typer.Option("--metadata-only", help="Do not read the weights.")] = False,
    show_all: Annotated[bool, typer.Option("--all", help=f"Show all tensors, not only {SHOWN}.")] = False,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 if the models differ.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what differs between two models: metadata, types, and weights by their error.

    The error of a tensor is the root mean square of the differences of its weights, divided by that of MODEL's weights:
    0.05 means that the weights of OTHER are off by 5 %. Tensors of the same bytes are not listed. `localinfer compare`
    measures what the differences do to the output of a model.

    \b
    Examples:
      localinfer diff model-f16.gguf model-q4_k_m.gguf
      localinfer diff old.gguf new.gguf --metadata-only
      localinfer diff smollm2 smollm2-finetuned.gguf --json
    """
    from localinfer.gguf.difference import compare_metadata, compare_tensors
    from localinfer.gguf.gguf_source import from_gguf

    status = screen.Status()
    a, b = (from_gguf(find_or_fetch(name, status)) for name in (first, second))
    fields, tensors = compare_metadata(a, b), []
    if not metadata_only:
        threads = resources.default_threads()
        tensors = compare_tensors(a, b, threads, status.percentage("comparing"))
        status.erase()
    if as_json:
        screen.write(json.dumps(as_object(fields, tensors), indent=1) + "\n")
    else:
        common = a.tensors.keys() & b.tensors.keys()
        same = len(common) - sum(each.name in common for each in tensors)
        lines = [*field_lines(fields), *([] if metadata_only else tensor_lines(tensors, same, show_all=show_all))]
        screen.write("".join(f"{line}\n" for line in lines))
    if exit_code and (fields or tensors):
        raise typer.Exit(DIFFERENT)


def field_lines(fields: "Sequence[FieldDifference]") -> Iterator[str]:
    """Yield the table of metadata that differ."""
    count = "1 key differs" if len(fields) == 1 else f"{len(fields)} keys differ"
    yield f"metadata: {count if fields else 'equal'}"
    rows = [(screen.one_line(each.key), shown_field(each.first), "->", shown_field(each.second)) for each in fields]
    yield from list(table("", "<<<<", rows, screen.output_columns()))[2:]


def tensor_lines(tensors: "Sequence[TensorDifference]", same: int, *, show_all: bool) -> Iterator[str]:
    """Yield the table of tensors that differ, the largest error first, and a summary by types."""
    yield ""
    yield f"tensors: {same} equal, {len(tensors)} {'differs' if len(tensors) == 1 else 'differ'}"
    ranked = sorted(tensors, key=lambda each: -each.error if math.isfinite(each.error) else -math.inf)
    shown = ranked if show_all else ranked[:SHOWN]
    rows = [
        (screen.one_line(each.name), described(each.first), "->", described(each.second), shown_error(each))
        for each in shown
    ]
    yield from list(table("", "<<<<>", rows, screen.output_columns()))[2:]
    if len(shown) < len(ranked):
        yield f"  {len(ranked) - len(shown)} more (--all)"
    types = Counter((each.first.type_name, each.second.type_name) for each in tensors if each.first and each.second)
    counted = [
        (f"{a} -> {b}" if a != b else a, f"{count} tensors", mean_error(tensors, a, b))
        for (a, b), count in types.most_common()
    ]
    yield from table("types", "<>>", counted)


def described(tensor: "SourceTensor | None") -> str:
    return f"{tensor.type_name} {' x '.join(map(str, tensor.shape))}" if tensor else "-"


def shown_error(tensor: "TensorDifference") -> str:
    return "" if math.isnan(tensor.error) else f"error {100 * tensor.error:.3g} %, largest {tensor.largest:.3g}"


def mean_error(tensors: "Sequence[TensorDifference]", first: str, second: str) -> str:
    """Return the mean error of the tensors that changed from a type to another."""
    errors = [
        each.error
        for each in tensors
        if each.first and each.second and (each.first.type_name, each.second.type_name) == (first, second)
    ]
    finite = [error for error in errors if math.isfinite(error)]
    return f"mean error {100 * sum(finite) / len(finite):.3g} %" if finite else ""


def as_object(fields: "Sequence[FieldDifference]", tensors: "Sequence[TensorDifference]") -> dict[str, Any]:
    """Return the differences as a JSON object."""
    return {
        "metadata": [
            {
                "key": each.key,
                "first": None if each.first is None else shown_field(each.first),
                "second": None if each.second is None else shown_field(each.second),
            }
            for each in fields
        ],
        "tensors": [
            {
                "name": each.name,
                "first": tensor_object(each.first),
                "second": tensor_object(each.second),
                "error": each.error if math.isfinite(each.error) else None,
                "largest": each.largest if math.isfinite(each.largest) else None,
            }
            for each in tensors
        ],
    }


def tensor_object(tensor: "SourceTensor | None") -> dict[str, Any] | None:
    return {"type": tensor.type_name, "shape": list(tensor.shape)} if tensor else None

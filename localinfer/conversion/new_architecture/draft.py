"""The draft of a new architecture: its file and its conversion, made of those of the nearest known architecture.

What differs is a comment that begins with TODO. Names from the checkpoint are untrusted: they appear in comments and as
Python literals only.
"""

import ast
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from localinfer import architectures
from localinfer.conversion.architecture import UNKNOWN
from localinfer.conversion.hparams import HParams
from localinfer.conversion.new_architecture.comparison import Comparison, FoundTensor
from localinfer.conversion.new_architecture.ranking import Candidate
from localinfer.conversion.new_architecture.remarks import (
    by_layers,
    config_remarks,
    is_number,
    literal,
    numbers,
    tensor_remarks,
)
from localinfer.conversion.new_architecture.survey import pattern
from localinfer.conversion.new_architecture.tensor_suggestions import own_name, suggestions, without_ending
from localinfer.conversion.tensor_formats import reorder
from localinfer.conversion.tensor_shapes import DEFAULT_SHAPES
from localinfer.escaping import printable

WIDTH = 120
SIZES = (  # of tensors, the most frequent first
    "n_embd", "n_ff", "n_q", "n_kv", "head_dim", "n_head", "n_head_kv", "n_vocab", "n_expert", "n_ff_expert",
    "n_ff_shared", "n_qkv", "n_2kv", "n_gate_and_up", "n_gate_and_up_expert", "n_2embd", "one",
)  # fmt: skip


@dataclass(frozen=True)
class Draft:
    """The files of a draft by their names, and the remarks on what differs, which they contain, too."""

    files: Mapping[str, str]
    remarks: tuple[str, ...]


def make_draft(name: str, class_name: str, nearest: Candidate) -> Draft:
    """Return the draft of the architecture `name` for checkpoints of a class. If nothing differs from the nearest one,
    it has only a conversion, which names that one."""
    comparison, module = nearest.comparison, module_name(name)
    conversion = f"{module}_conversion.py"
    if comparison.is_alike:
        return Draft({conversion: same_conversion(name, class_name, nearest)}, ())
    remarks = [*tensor_remarks(comparison), *config_remarks(comparison)]
    files = {
        f"{module}.py": architecture_text(name, comparison.architecture.name, remarks),
        conversion: conversion_text(name, class_name, nearest),
    }
    return Draft(files, tuple(remarks))


def module_name(name: str) -> str:
    """Return the name of the modules of an architecture."""
    return re.sub(r"[-.]", "_", name)


# --- the architecture file ---


def architecture_text(name: str, nearest: str, remarks: Iterable[str]) -> str:
    """Return the draft of an architecture file: the `build` function of the nearest one, with what it uses. Other
    functions are imported from there."""
    module = module_name(nearest)
    source = Path(architectures.__file__).with_name(f"{module}.py").read_text(encoding="utf-8")
    tree = ast.parse(source)
    [build] = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "build"]
    used, constants = names_in(build), list[str]()
    for node in reversed([node for node in tree.body if isinstance(node, ast.Assign)]):
        if {target.id for target in node.targets if isinstance(target, ast.Name)} & used:
            used |= names_in(node)
            constants.insert(0, ast.get_source_segment(source, node) or "")
    others = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)} - {"build"}
    head = [
        f'"""{name} (TODO: authors, year): as {nearest}, with TODO."""',
        "\n".join(imports_of(tree, used, others & used, module)),
        *(["\n".join(constants)] if constants else []),
    ]
    todo = comment_lines(f"# TODO: {line}" for line in remarks)
    function = "\n".join([*todo, ast.get_source_segment(source, build) or ""])
    return "\n\n".join(head) + f"\n\n\n{function}\n"


def names_in(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def imports_of(tree: ast.Module, used: set[str], others: set[str], module: str) -> Iterator[str]:
    """Yield the import statements of the names that are used; `others` are functions of the module itself."""
    lines = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom | ast.Import):
            aliases = [alias for alias in node.names if (alias.asname or alias.name).partition(".")[0] in used]
            if aliases:
                names, source = ", ".join(map(ast.unparse, aliases)), getattr(node, "module", "")
                lines.append(f"from {source} import {names}" if source else f"import {names}")
    if others:
        lines.append(f"from localinfer.architectures.{module} import {', '.join(sorted(others))}")
    own = sorted(line for line in lines if line.startswith("from localinfer"))
    foreign = [line for line in lines if line not in own]
    yield from [*foreign, "", *own] if foreign and own else [*foreign, *own]


# --- the conversion ---


def same_conversion(name: str, class_name: str, nearest: Candidate) -> str:
    """Return a conversion of checkpoints that differ from known ones in the name of their class only."""
    architecture, more = nearest.comparison.architecture, ""
    if reorder.interleave_query_halves in architecture.reorder.values():
        names = f"name={literal(name)}, name_map_architecture={literal(architecture.name)}"
        todo = (
            "# TODO: if rotate_half of the model's code takes even and odd values, rows keep their order, and it is an "
            f"architecture of its own: replace({nearest.variable}, {names}, reorder={{}})"
        )
        more = "\n".join([*comment_lines([todo]), ""])
    return (
        f'"""Conversion of {name}, whose checkpoints are those of {architecture.name}."""\n\n'
        f"from localinfer.conversion.architectures.{nearest.module} import {nearest.variable}\n\n"
        f"{more}BY_CLASS = {{{literal(class_name)}: {nearest.variable}}}\n"
    )


def conversion_text(name: str, class_name: str, nearest: Candidate) -> str:
    """Return the draft of a conversion: the nearest one, with the fields that differ."""
    variable = module_name(name).upper()
    fields = "".join(f"    {line}\n" for line in field_lines(name, nearest.comparison))
    return (
        f'"""Conversion of {name}: as {nearest.comparison.architecture.name}, with TODO."""\n\n'
        "from dataclasses import replace\n\n"
        f"from localinfer.conversion.architectures.{nearest.module} import {nearest.variable}\n\n"
        f"{variable} = replace(\n    {nearest.variable},\n{fields})\n"
        f"BY_CLASS = {{{literal(class_name)}: {variable}}}\n"
    )


def field_lines(name: str, comparison: Comparison) -> Iterator[str]:
    """Yield the lines of the fields that differ."""
    import gguf

    architecture, mapping = comparison.architecture, comparison.architecture.name_map_architecture
    yield f"name={literal(name)},"
    if name not in gguf.MODEL_ARCH_NAMES.values():
        yield f"name_map_architecture={literal(mapping or architecture.name)},"
    elif mapping:
        yield 'name_map_architecture="",'
    if comparison.lacks_experts:
        yield "moe_tensors=(),"
        yield "dense_tensors=(),"
    yield from kind_lines(comparison)
    yield from tensor_name_lines(comparison)
    yield from shape_lines(comparison)
    yield from number_lines(name, comparison)
    for key, value in comparison.reading.changes.items():
        yield from wrapped(f"{key}={literal(value)},")
    if keys := (*comparison.reading.unsupported, *comparison.unread):
        listed = ", ".join(printable(key, 80) for key in keys)
        todo = f"# TODO: float_keys, int_keys, bool_keys or metadata for what the graph needs of {listed}"
        yield from comment_lines([todo], 4)
    if comparison.reading.problem:
        todo = f"# TODO: read_hparams or metadata of another one: {printable(comparison.reading.problem, 200)}"
        yield from comment_lines([todo], 4)


def kind_lines(comparison: Comparison) -> Iterator[str]:
    """Yield the lists of tensors, if they differ."""
    architecture, added = comparison.architecture, dict(comparison.unexpected)
    for tensor in named_by_hand(comparison):
        added.setdefault(next(iter(suggestions(tensor, comparison)), UNKNOWN), tensor)
    all_layers = max((len(tensor.layers) for tensor in comparison.known.values()), default=0)
    some = {kind: tensor for kind, tensor in added.items() if 0 < len(tensor.layers) < all_layers}
    everywhere = [kind for kind, tensor in added.items() if tensor.layers and kind not in some]
    biases = [kind for kind in everywhere if kind.endswith(".bias")]
    present = [kind for kind in architecture.layer_tensors if kind not in (*comparison.missing, *comparison.partial)]
    kinds = (*present, *(kind for kind in everywhere if kind not in biases))
    if kinds != architecture.layer_tensors or comparison.lacks_experts:
        yield from wrapped(f"layer_tensors={literal(kinds)},")
    if biases:
        yield from wrapped(f"optional_layer_tensors={literal((*architecture.optional_layer_tensors, *biases))},")
    outside = tuple(kind for kind, tensor in added.items() if not tensor.layers)
    model = tuple(kind for kind in architecture.model_tensors if kind not in comparison.missing)
    if outside or model != architecture.model_tensors:
        yield from wrapped(f"model_tensors={literal((*model, *outside))},")
    if "output_norm" in comparison.missing:
        yield 'output_norm="",'
    with_router = comparison.known["ffn_gate_inp"].layers if "ffn_gate_inp" in comparison.known else ()
    without_router = set(range(all_layers)) - {*with_router}
    for field, layers in (("moe_tensors", {*with_router}), ("dense_tensors", without_router)):
        before = getattr(architecture, field)
        here = [kind for kind, tensor in some.items() if with_router and {*tensor.layers} == layers]
        after = (*(kind for kind in before if kind not in comparison.missing), *here)
        some = {kind: tensor for kind, tensor in some.items() if kind not in here}
        if after != before:
            yield from wrapped(f"{field}={literal(after)},")
    yield from partial_lines(some, comparison)


def partial_lines(added: Mapping[str, FoundTensor], comparison: Comparison) -> Iterator[str]:
    """Yield what is to be done about tensors of some layers: those that are `added`, and those of the architecture."""
    for kind, tensor in added.items():
        fields = "moe_tensors, dense_tensors or layer_type_tensors"
        yield from comment_lines([f"# TODO: only layers {numbers(tensor.layers)} have {kind}: {fields}"], 4)
    if not comparison.partial:
        return
    yield "layer_type_tensors={  # TODO: the types that layer_types of config.json has"
    for layers, kinds in by_layers(comparison.partial).items():
        yield f"    # layers {numbers(layers)}"
        lines = wrapped(f"{UNKNOWN}={literal(tuple(kinds))},")
        yield from (f"    {line.replace(f'{UNKNOWN}=', literal(UNKNOWN) + ': ')}" for line in lines)
    yield "},"


def tensor_name_lines(comparison: Comparison) -> Iterator[str]:
    """Yield the names of tensors that the nearest architecture does not know."""
    architecture, unnamed = comparison.architecture, named_by_hand(comparison)
    if not unnamed:
        return
    yield "tensor_names={"
    for old, new in architecture.tensor_names.items():
        yield f"    {literal(old)}: {literal(new)},"
    for tensor in unnamed:
        kinds = suggestions(tensor, comparison) or (UNKNOWN,)
        others = f" or {', '.join(kinds[1:3])}" if len(kinds) > 1 else ""
        shape = "" if tensor.shape is None else f": {list(tensor.shape)}"
        yield f"    {literal(own_name(tensor))}: {literal(kinds[0])},  # TODO{others}{shape}"
    yield "},"


def named_by_hand(comparison: Comparison) -> list[FoundTensor]:
    """Return the tensors that need a name; single numbers of layers become metadata."""
    return [tensor for tensor in comparison.unnamed if not is_number(tensor)]


def number_lines(name: str, comparison: Comparison) -> Iterator[str]:
    """Yield the tensors that are single numbers of layers, and the keys of GGUF that they become."""
    if numbers := [tensor.name for tensor in comparison.unnamed if is_number(tensor)]:
        yield "layer_numbers={  # TODO: the keys"
        for tensor in numbers:
            key = without_ending(tensor).rpartition(".")[2]
            yield f"    {literal(pattern(tensor))}: {literal(f'{name}.{key}')},"
        yield "},"


def shape_lines(comparison: Comparison) -> Iterator[str]:
    """Yield the shapes of tensors that are not the usual ones."""
    others = {kind: comparison.known[kind].shape for kind in comparison.shapes}
    for kind, tensor in comparison.unexpected.items():
        if kind.removesuffix(".bias") not in DEFAULT_SHAPES and kind not in comparison.architecture.shapes:
            others[kind] = tensor.shape
    for tensor in named_by_hand(comparison):
        kind = next(iter(suggestions(tensor, comparison)), "")
        if kind and kind not in DEFAULT_SHAPES and kind not in comparison.architecture.shapes:
            others[kind] = tensor.shape
    if not others:
        return
    yield "shapes={"
    for kind, sizes in comparison.architecture.shapes.items():
        if kind not in others:
            yield f"    {literal(kind)}: {literal(sizes)},"
    for kind, shape in others.items():
        names, todo = size_names(shape, comparison.reading.hparams)
        yield f"    {literal(kind)}: {literal(names)},{todo}"
    yield "},"


def size_names(shape: tuple[int, ...] | None, hparams: HParams | None) -> tuple[tuple[str, ...], str]:
    """Return the names of the hyperparameters that have the sizes of a shape, and a comment if several or none have."""
    if shape is None:
        return (UNKNOWN,), "  # TODO"
    if hparams is None:
        return (UNKNOWN,) * len(shape), f"  # TODO: {list(shape)}"
    known = {size: hparams.size(size) for size in (*SIZES, *hparams.sizes)}
    candidates = [[size for size, value in known.items() if value == n] or [UNKNOWN] for n in shape]
    names = tuple(names[0] for names in candidates)
    doubtful = [f"{n}: {' or '.join(names)}" for n, names in zip(shape, candidates, strict=True) if names[1:]]
    if UNKNOWN in names:
        doubtful.append(str(list(shape)))
    return names, f"  # TODO: {'; '.join(doubtful)}" if doubtful else ""


# --- text ---


def wrapped(field: str) -> Iterator[str]:
    """Yield the lines of a field, whose value is a tuple or a dict if it is too long for one."""
    if len(field) <= WIDTH - 4:
        yield field
        return
    opening = re.match(r"\w+=[({]", field)
    start = opening.end() if opening else 0
    yield field[:start]
    yield from textwrap.wrap(
        field[start:-2].rstrip(",") + ",", WIDTH - 4, initial_indent="    ", subsequent_indent="    ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    yield field[-2:]


def comment_lines(comments: Iterable[str], indent: int = 0) -> Iterator[str]:
    """Yield comments as lines that are not too long."""
    for comment in comments:
        yield from textwrap.wrap(comment, WIDTH - indent, subsequent_indent="#   ", break_on_hyphens=False)

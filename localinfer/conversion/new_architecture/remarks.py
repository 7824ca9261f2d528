"""What differs between a checkpoint and a known architecture, in sentences.

Names from the checkpoint are untrusted: they are escaped.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from localinfer.conversion.new_architecture import hints
from localinfer.conversion.new_architecture.comparison import Comparison, FoundTensor
from localinfer.conversion.new_architecture.tensor_suggestions import suggestions
from localinfer.escaping import printable


def tensor_remarks(comparison: Comparison) -> Iterator[str]:
    """Yield what differs in the tensors."""
    nearest = comparison.architecture.name
    if comparison.lacks_experts:
        yield f"the checkpoint has no experts, which {nearest} has"
    for hint, kinds in by_hint(comparison.missing, hints.MISSING_KINDS):
        yield with_hint(f"the checkpoint has no {kinds}, which {nearest} has", hint)
    for layers, some in by_layers(comparison.partial).items():
        what = f"only layers {numbers(layers)} have {', '.join(some)}, which {nearest} has in all"
        yield with_hint(what, "layers of several types, as in granitehybrid and bamba")
    for hint, kinds in by_hint(comparison.unexpected, hints.UNEXPECTED_KINDS):
        yield with_hint(f"the checkpoint has {kinds}, which {nearest} lacks", hint)
    for tensor in comparison.unnamed:
        kinds = " or ".join(suggestions(tensor, comparison)[:3])
        probably = "a number of each layer" if is_number(tensor) else f"it may be {kinds}" if kinds else ""
        yield with_hint(f"{nearest} has no tensor {described(tensor)}", probably)
    for kind, expected in comparison.shapes.items():
        yield f"{described(comparison.known[kind])} ({kind}) has another shape than in {nearest}: {list(expected)}"


def config_remarks(comparison: Comparison) -> Iterator[str]:
    """Yield what differs in config.json."""
    nearest, reading = comparison.architecture.name, comparison.reading
    for name in reading.changes.get("activations", ()):
        yield with_hint(f"config.json: hidden_act is {literal(name)}", hints.activation_hint(name))
    for hint, keys in by_hint(reading.unsupported, hints.KEYS):
        yield with_hint(f"config.json: {nearest} does not compute the value of {keys}", hint)
    if "may_have_window" in reading.changes:
        yield "config.json: there is a sliding window: with_window(g, ...)"
    if reading.problem:
        yield f"config.json, read as that of {nearest}: {printable(reading.problem, 200)}"
    for hint, keys in by_hint(comparison.unread, hints.KEYS):
        yield with_hint(f"config.json: {nearest} does not read {keys}", hint)


def by_hint(names: Iterable[str], table: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield each hint with the names that have it, as text."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(hints.hint(name, table), []).append(printable(name, 80))
    for hint, alike in found.items():
        yield hint, ", ".join(alike)


def by_layers(tensors: Mapping[str, FoundTensor]) -> dict[tuple[int, ...], list[str]]:
    """Return kinds by the layers that have them."""
    found: dict[tuple[int, ...], list[str]] = {}
    for kind, tensor in tensors.items():
        found.setdefault(tensor.layers, []).append(kind)
    return found


def numbers(layers: Sequence[int]) -> str:
    """Return the numbers of layers as text."""
    return ", ".join(map(str, layers[:8])) + ", ..." * (len(layers) > 8)


def is_number(tensor: FoundTensor) -> bool:
    """Return whether a tensor is a single number of a layer."""
    return bool(tensor.layers) and tensor.shape in ((), (1,))


def described(tensor: FoundTensor) -> str:
    """Return the name of a tensor, with its shape."""
    shape = f" {list(tensor.shape)}" if tensor.shape else ""
    return f"{printable(tensor.name, 100)}{shape}"


def with_hint(text: str, hint: str) -> str:
    return f"{text}: {hint}" if hint else text


def literal(value: Any) -> str:
    """Return a value of the checkpoint as Python code with double quotes."""
    if isinstance(value, str):
        text = repr(printable(value))
        return text if '"' in value or "\\" in text or "'" in value else f'"{text[1:-1]}"'
    if isinstance(value, tuple):
        return f"({', '.join(map(literal, value))}{',' * (len(value) == 1)})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{literal(key)}: {literal(each)}" for key, each in value.items()) + "}"
    return repr(value)

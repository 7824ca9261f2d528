"""A report on quantizing as one page that needs nothing else: no network, no script from elsewhere.

The geometry of its pictures is computed here, in the units of an SVG's viewBox; `report.html` is the page around them.
Knows the object that `Report.as_object` gives, and no model.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

LEFT, TOP, RIGHT, BOTTOM = 60, 10, 760, 260  # the frame of the plot
CELL = 18  # a tensor in the map
NAMES = 120  # room for the names of its rows
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#e07b39", "#7a5cb0", "#2a9d8f")
COLDEST, HOTTEST = 240, 0  # hues of the fewest and of the most bits

Tensor = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Line:
    """The errors of one kind of tensor, from layer to layer."""

    name: str
    colour: str
    points: Sequence[tuple[float, float]]
    says: Sequence[str]  # of each point


@dataclass(frozen=True, slots=True)
class Tick:
    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Plot:
    """Relative errors, on a logarithmic scale, against depth."""

    lines: Sequence[Line]
    layers: Sequence[Tick]
    errors: Sequence[Tick]


@dataclass(frozen=True, slots=True)
class Square:
    x: float
    y: float
    colour: str
    says: str


@dataclass(frozen=True, slots=True)
class TypeMap:
    """A row for each kind of tensor, a column for each layer."""

    width: float
    height: float
    rows: Sequence[Tick]
    squares: Sequence[Square]
    legend: Sequence[tuple[str, str]]  # colour, type


def page(report: Mapping[str, Any]) -> str:
    """The page, HTML. Names of tensors are text of a file, and escaped."""
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = environment.from_string(Path(__file__).with_name("report.html").read_text(encoding="utf-8"))
    inside = [tensor for tensor in report["tensors"] if tensor["layer"] is not None and len(tensor["shape"]) > 1]
    return template.render(report=report, plot=plot(inside), types=type_map(inside))


def plot(tensors: Sequence[Tensor]) -> Plot | None:
    """Of the matrices in layers; None when none has an error."""
    with_errors = [tensor for tensor in tensors if tensor["relative_error"]]
    if not with_errors:
        return None
    deepest: int = max(tensor["layer"] for tensor in with_errors)
    errors: list[float] = [tensor["relative_error"] for tensor in with_errors]
    ticks = round_numbers(min(errors), max(errors))
    low, high = math.log10(ticks[0]), math.log10(ticks[-1])

    def x(layer: int) -> float:
        return LEFT + (RIGHT - LEFT) * layer / max(1, deepest)

    def y(error: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * (math.log10(error) - low) / (high - low)

    lines = []
    for number, kind in enumerate(dict.fromkeys(tensor["kind"] for tensor in with_errors)):
        own = sorted((tensor for tensor in with_errors if tensor["kind"] == kind), key=lambda each: each["layer"])
        points = [(x(each["layer"]), y(each["relative_error"])) for each in own]
        lines.append(Line(kind, COLOURS[number % len(COLOURS)], points, [*map(says, own)]))
    step = max(1, -(-(deepest + 1) // 16))
    layers = [Tick(x(layer), str(layer)) for layer in range(0, deepest + 1, step)]
    return Plot(lines, layers, [Tick(y(value), f"{100 * value:g} %") for value in ticks])


def round_numbers(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, ... at every power of ten, from one that is not above `low` to one above `high`."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1
    numbers = [float(f"{digit}e{power}") for power in range(first, last + 1) for digit in (1, 2, 5)]
    begin = max(at for at, number in enumerate(numbers) if number <= low)
    end = min(at for at, number in enumerate(numbers) if number > high)
    return numbers[begin : end + 1]


def type_map(tensors: Sequence[Tensor]) -> TypeMap | None:
    """Of the matrices in layers; None when there are none."""
    if not tensors:
        return None
    kinds = {kind: number for number, kind in enumerate(dict.fromkeys(tensor["kind"] for tensor in tensors))}
    bits = {tensor["new_type"]: tensor["bits"] for tensor in sorted(tensors, key=lambda each: each["bits"])}
    colours = {name: colour_of(number, len(bits)) for number, name in enumerate(bits)}
    squares = [
        Square(NAMES + CELL * tensor["layer"], CELL * kinds[tensor["kind"]], colours[tensor["new_type"]], says(tensor))
        for tensor in tensors
    ]
    rows = [Tick(CELL * number + 0.7 * CELL, kind) for kind, number in kinds.items()]
    width = NAMES + CELL * (1 + max(tensor["layer"] for tensor in tensors))
    legend = [(colours[name], f"{name}, {value:.2f} bits") for name, value in bits.items()]
    return TypeMap(width, CELL * len(kinds), rows, squares, legend)


def colour_of(number: int, count: int) -> str:
    """From cold for the fewest bits to hot for the most."""
    hue = COLDEST + (HOTTEST - COLDEST) * number / max(1, count - 1)
    return f"hsl({hue:.0f} 55% 55%)"


def says(tensor: Tensor) -> str:
    """What a pointer is told that rests on a tensor."""
    error = tensor["relative_error"]
    return f"{tensor['name']}: {tensor['new_type']}" + (f", error {100 * error:.3g} %" if error else "")

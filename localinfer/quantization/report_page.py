"""The quantization report as one self-contained HTML page.

This module computes the geometry of the charts in the units of the SVG viewBox; `report.html` is the template. The
input is the result of `Report.to_dict`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

LEFT, TOP, RIGHT, BOTTOM = 60, 10, 760, 260  # the frame of the chart
CELL = 18  # size of a tensor in the map
NAMES = 120  # width of the row labels
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#e07b39", "#7a5cb0", "#2a9d8f")
FOLDER = Path(__file__).parent
COLDEST, HOTTEST = 240, 0  # hues of the fewest and of the most bits

Tensor = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Line:
    """The errors of one kind of tensor, from layer to layer."""

    name: str
    colour: str
    points: Sequence[tuple[float, float]]
    tooltips: Sequence[str]  # one for each point


@dataclass(frozen=True, slots=True)
class Tick:
    """A labelled position on an axis."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure of each tensor, on a logarithmic scale, against the layer."""

    heading: str
    caption: str
    lines: Sequence[Line]
    layers: Sequence[Tick]
    values: Sequence[Tick]


@dataclass(frozen=True, slots=True)
class Square:
    """A tensor in the map of types."""

    x: float
    y: float
    colour: str
    tooltip: str


@dataclass(frozen=True, slots=True)
class TypeMap:
    """The map of types: a row for each kind of tensor, a column for each layer."""

    width: float
    height: float
    rows: Sequence[Tick]
    squares: Sequence[Square]
    legend: Sequence[tuple[str, str]]  # colour, type


def render_page(report: Mapping[str, Any]) -> str:
    """Return the page as HTML. Tensor names come from a file and are escaped."""
    inside = [tensor for tensor in report["tensors"] if tensor["layer"] is not None and len(tensor["shape"]) > 1]
    return render(FOLDER / "report.html", report=report, plot=error_plot(inside), types=type_map(inside, tooltip))


def render(template: Path, **values: Any) -> str:
    """Return a page made of a template, which may include the parts in this folder. Names come from files and are
    escaped."""
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined,
        loader=jinja2.FileSystemLoader([template.parent, FOLDER]),
    )  # fmt: skip
    return environment.get_template(template.name).render(**values)


def error_plot(tensors: Sequence[Tensor]) -> Plot | None:
    """Return the error chart of the matrices in layers; None if none has an error."""
    caption = "Relative error: root of the sum of squared errors over the sum of squared weights."
    return plot_by_layer(
        tensors, "relative_error", tooltip, lambda error: f"{100 * error:g} %", "Error by layer", caption
    )


def plot_by_layer(
    tensors: Sequence[Tensor],
    key: str,
    tooltip_of: Callable[[Tensor], str],
    label_of: Callable[[float], str],
    heading: str,
    caption: str,
) -> Plot | None:
    """Return the chart of a figure of the tensors; None if none has one. `label_of` labels its axis."""
    shown = [tensor for tensor in tensors if tensor[key]]
    if not shown:
        return None
    deepest: int = max(tensor["layer"] for tensor in shown)
    values: list[float] = [tensor[key] for tensor in shown]
    ticks = logarithmic_axis_ticks(min(values), max(values))

    def x(layer: int) -> float:
        return LEFT + (RIGHT - LEFT) * layer / max(1, deepest)

    lines = []
    for number, kind in enumerate(dict.fromkeys(tensor["kind"] for tensor in shown)):
        of_kind = sorted((tensor for tensor in shown if tensor["kind"] == kind), key=lambda each: each["layer"])
        points = [(x(each["layer"]), height(each[key], ticks)) for each in of_kind]
        lines.append(Line(kind, COLOURS[number % len(COLOURS)], points, [*map(tooltip_of, of_kind)]))
    step = max(1, -(-(deepest + 1) // 16))
    layers = [Tick(x(layer), str(layer)) for layer in range(0, deepest + 1, step)]
    return Plot(heading, caption, lines, layers, [Tick(height(value, ticks), label_of(value)) for value in ticks])


def height(value: float, ticks: Sequence[float]) -> float:
    """Return the vertical position of a value on the logarithmic axis with these ticks."""
    low, high = math.log10(ticks[0]), math.log10(ticks[-1])
    above: float = (math.log10(value) - low) / (high - low)
    return BOTTOM - (BOTTOM - TOP) * above


def logarithmic_axis_ticks(low: float, high: float) -> list[float]:
    """Return the ticks of a logarithmic axis, 1, 2 and 5 times powers of ten, that enclose `low` and `high`.

    The first is the largest one that is at most `low`, the last the smallest one above `high`. Both must be positive.
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 2)
    ticks = [float(f"{digit}e{power}") for power in powers for digit in (1, 2, 5)]
    first = max(index for index, tick in enumerate(ticks) if tick <= low)
    last = min(index for index, tick in enumerate(ticks) if tick > high)
    return ticks[first : last + 1]


def type_map(tensors: Sequence[Tensor], tooltip_of: Callable[[Tensor], str]) -> TypeMap | None:
    """Return the map of types of the matrices in layers; None if there are none."""
    if not tensors:
        return None
    kinds = {kind: number for number, kind in enumerate(dict.fromkeys(tensor["kind"] for tensor in tensors))}
    bits = {tensor["new_type"]: tensor["bits"] for tensor in sorted(tensors, key=lambda each: each["bits"])}
    colours = {name: colour_of(number, len(bits)) for number, name in enumerate(bits)}
    squares = [
        Square(
            NAMES + CELL * tensor["layer"],
            CELL * kinds[tensor["kind"]],
            colours[tensor["new_type"]],
            tooltip_of(tensor),
        )
        for tensor in tensors
    ]
    rows = [Tick(CELL * number + 0.7 * CELL, kind) for kind, number in kinds.items()]
    width = NAMES + CELL * (1 + max(tensor["layer"] for tensor in tensors))
    legend = [(colours[name], f"{name}, {value:.2f} bits") for name, value in bits.items()]
    return TypeMap(width, CELL * len(kinds), rows, squares, legend)


def colour_of(number: int, count: int) -> str:
    """Return a colour from blue for the fewest bits to red for the most."""
    hue = COLDEST + (HOTTEST - COLDEST) * number / max(1, count - 1)
    return f"hsl({hue:.0f} 55% 55%)"


def tooltip(tensor: Tensor) -> str:
    """Return the tooltip of a tensor."""
    error = tensor["relative_error"]
    return f"{tensor['name']}: {tensor['new_type']}" + (f", error {100 * error:.3g} %" if error else "")

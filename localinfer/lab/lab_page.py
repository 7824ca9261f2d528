"""The page of a quantization lab: the frontier, the sensitivities by layer, and a table of all tensors and types.

The input is the content of a lab file; `lab.html` is the template. The charts have the units of the SVG
viewBox.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localinfer.quantization.report import BLOCK
from localinfer.quantization.report_page import (
    LEFT,
    RIGHT,
    Tick,
    height,
    logarithmic_axis_ticks,
    plot_by_layer,
    render,
    type_map,
)

MIB = 1 << 20
N_SIZE_TICKS = 8

Content = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Mark:
    """A labelled point of the chart; `measured` ones are filled."""

    x: float
    y: float
    label: str
    tooltip: str
    measured: bool


@dataclass(frozen=True, slots=True)
class FrontierPlot:
    """The divergence of choices of types, on a logarithmic scale, against the size of the file."""

    points: Sequence[tuple[float, float]]
    recipes: Sequence[Mark]
    best: Sequence[Mark]
    values: Sequence[Tick]
    sizes: Sequence[Tick]


def render_lab_page(content: Content) -> str:
    """Return the page as HTML."""
    tensors = [tensor_row(name, each, content["types"]) for name, each in content["tensors"].items()]
    inside = [tensor for tensor in tensors if tensor["layer"] is not None]
    bits = {kind: figures["bits"] for tensor in tensors for kind, figures in tensor["types"].items()}
    caption = "The KL divergence of the model, in nats per token, if only this tensor is quantized."
    by_layer = plot_by_layer(inside, "measured", tooltip, lambda value: f"{value:g}", "Sensitivity by layer", caption)
    return render(
        Path(__file__).with_name("lab.html"),
        lab=content,
        tensors=tensors,
        kinds=sorted(bits, key=bits.__getitem__),
        frontier=frontier_plot(content),
        plot=by_layer,
        types=type_map(inside, tooltip),
    )


def tensor_row(name: str, tensor: Content, chosen: Mapping[str, str]) -> dict[str, Any]:
    """Return a tensor for the table and the charts."""
    weights, block = math.prod(tensor["shape"]), BLOCK.match(name)
    types = {kind: {**figures, "bits": 8 * figures["nbytes"] / weights} for kind, figures in tensor["types"].items()}
    direct = [kind for kind, figures in types.items() if "standard_error" in figures]
    new = chosen[name]
    return {
        "name": name,
        "layer": int(block[1]) if block else None,
        "kind": BLOCK.sub("", name).removesuffix(".weight"),
        "shape": tensor["shape"],
        "types": types,
        "measured_type": direct[0] if direct else None,
        "measured": types[direct[0]]["kl_divergence"] if direct else None,
        "new_type": new,
        "bits": types[new]["bits"] if new in types else 32.0,
    }


def tooltip(tensor: Mapping[str, Any]) -> str:
    """Return the tooltip of a tensor."""
    measured = f", KL {tensor['measured']:.2g} in {tensor['measured_type']}" if tensor["measured"] else ""
    return f"{tensor['name']}: {tensor['new_type']}{measured}"


def frontier_plot(content: Content) -> FrontierPlot | None:
    """Return the chart; None if no divergence is positive."""
    recipes: Mapping[str, Content] = content["recipes"]
    best = {name: each["best"] for name, each in recipes.items() if "best" in each}
    shown = [each for each in (*content["frontier"], *recipes.values(), *best.values()) if value_of(each) > 0]
    if not shown:
        return None
    ticks = logarithmic_axis_ticks(min(map(value_of, shown)), max(map(value_of, shown)))
    low, high = min(each["size"] for each in shown), max(each["size"] for each in shown)

    def x(size: float) -> float:
        fraction: float = (size - low) / max(1, high - low)
        return LEFT + (RIGHT - LEFT) * fraction

    def mark(name: str, each: Content) -> Mark:
        said = "measured" if "measured" in each else "predicted"
        text = f"{name}: {each['size'] / MIB:.1f} MiB, KL {value_of(each):.3g} {said}"
        return Mark(x(each["size"]), height(value_of(each), ticks), name, text, "measured" in each)

    points = [(x(each["size"]), height(value_of(each), ticks)) for each in content["frontier"] if value_of(each) > 0]
    sizes = [low + (high - low) * number / (N_SIZE_TICKS - 1) for number in range(N_SIZE_TICKS)]
    return FrontierPlot(
        points,
        [mark(name, each) for name, each in recipes.items() if value_of(each) > 0],
        [mark(f"best in the size of {name}", each) for name, each in best.items() if value_of(each) > 0],
        [Tick(height(value, ticks), f"{value:g}") for value in ticks],
        [Tick(x(size), f"{size / MIB:.0f}") for size in sizes],
    )


def value_of(point: Content) -> float:
    """Return the measured divergence of a choice of types, or else the predicted one."""
    return float(point.get("measured", point)["kl_divergence"])

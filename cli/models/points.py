"""`localinfer inspect --points`: the points at which hooks read and change activations. The weights are not read."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from cli.terminal import screen
from cli.terminal.tables import table
from localinfer.options import Options

if TYPE_CHECKING:
    from localinfer.model.points import PointDescription

Layers = list[int]
NUMBER = re.compile(r"(?<=\bblk\.)(\d+)")  # of a layer


def show_points(path: Path, options: Options, projector: Path | None = None, *, as_json: bool) -> None:
    """Print the points of a model, and those of its projector. Raises LocalInferError for a damaged file,
    UnsupportedError for a model or a projector that cannot run."""
    from localinfer.gguf.overrides import open_overridden
    from localinfer.graph.recording.model_graph import HookedGraph
    from localinfer.model.points import describe, describe_points
    from localinfer.runtime.graph_building import build_graph

    f = open_overridden(path, options)
    points = describe_points(build_graph(f, options, hooks=HookedGraph(None)))
    if projector is not None:
        from localinfer.multimodal.projector_file import open_projector, projector_points

        points = {**describe(projector_points(open_projector(projector, f), options)), **points}
    if as_json:
        found = {name: {"shape": each.shape, "description": each.description} for name, each in points.items()}
        screen.write(json.dumps(found, indent=1) + "\n")
    else:
        lines = table("points, and the shape of the activations of a token", "<<<<", rows(points))
        screen.write("\n".join(list(lines)[1:]) + "\n")


def rows(points: "Mapping[str, PointDescription]") -> Iterator[Sequence[str]]:
    """Yield a row for each point, or for all layers that have it in one shape."""
    layers: dict[tuple[str, str], tuple[Layers, str]] = {}
    for name, point in points.items():
        before, layer, rest = NUMBER.split(name, 1) if NUMBER.search(name) else (name, "", "")
        key = f"{before}*{rest}" if layer else name, " x ".join(map(str, point.shape))
        layers.setdefault(key, ([], point.description))[0].extend([int(layer)] if layer else [])
    for (name, shape), (numbers, description) in layers.items():
        yield name, ranges(numbers), shape, description


def ranges(numbers: Layers) -> str:
    """Return ascending numbers as text: "0-3, 6"."""
    runs = [[number for _, number in run] for _, run in groupby(enumerate(numbers), lambda item: item[1] - item[0])]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)

"""The points of a model, described."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from localinfer.graph.points import ATTENTION_WEIGHTS, KEYS, QUERIES, description
from localinfer.graph.recording.model_graph import ModelGraph
from localinfer.graph.recording.points import Point


class PointDescription(NamedTuple):
    """A point: the shape of the activations of one token, or ("heads", "tokens") for attention weights, and what they
    are."""

    shape: tuple[int | str, ...]
    description: str


def describe(points: Mapping[str, Point]) -> Mapping[str, PointDescription]:
    """Return the description of each point."""
    return {name: PointDescription(point.shape, description(name)) for name, point in points.items()}


def describe_points(model_graph: ModelGraph) -> Mapping[str, PointDescription]:
    """Return the points of a graph that has all points, by name, in the order in which they are computed."""
    points = model_graph.points.points
    weighted = dict(attention_weights(model_graph))
    found = dict[str, PointDescription]()
    for name, point in points.items():
        found.update(describe({name: point}))
        if name in weighted:
            heads, weights = weighted[name]
            found[weights] = PointDescription((heads, "tokens"), description(weights))
    return found


def attention_weights(model_graph: ModelGraph) -> Iterator[tuple[str, tuple[int, str]]]:
    """Yield the layers whose attention weights can be computed, which are not those of sparse or compressed attention:
    the last point before them, the number of heads, and their own point."""
    points = model_graph.points.points
    for prefix, (layer, _) in model_graph.attention.layers.items():
        own_keys, keys = f"{prefix}{KEYS}", f"{layer.kv_source or prefix}{KEYS}"
        is_whole = not (layer.spec.selected or layer.spec.compression)
        if f"{prefix}{QUERIES}" in points and keys in points and is_whole:
            last = own_keys if own_keys in points else f"{prefix}{QUERIES}"
            yield last, (layer.heads.count, f"{prefix}{ATTENTION_WEIGHTS}")

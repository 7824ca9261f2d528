"""Batches with hooks: the graph that is cut at the points of all hooks of a batch, and its evaluation.

A batch without hooks runs on the model's own graph, which has no points.
"""

import threading
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from localinfer.graph.recording.points import Point
from localinfer.runtime.activations.hooks import HookedRows, SequenceHooks
from localinfer.runtime.compiled_graph import CompiledGraph, Floats
from localinfer.runtime.cuts import run_in_parts
from localinfer.runtime.thread_pool import OnOp
from quant.jit.loader import Progress

MAX_GRAPHS = 4  # with hooks, of a model: each has buffers of its own

NO_ROWS = np.zeros(0, np.int32)
SegmentRows = tuple[SequenceHooks | None, NDArray[np.int32], NDArray[np.int64]]  # hooks, token ids, positions


class HookedBatch:
    """A batch: the graph that evaluates it, and the rows that hooks see. `is_alone`: all belong to one sequence."""

    def __init__(self, graph: CompiledGraph, hooked: Sequence[HookedRows] = (), *, is_alone: bool = True) -> None:
        self.graph, self._hooked, self._is_alone = graph, hooked, is_alone
        self._output_rows = NO_ROWS
        self._hook_thread = 0  # the thread that a hook runs in

    def select_output_rows(self, rows: NDArray[np.int32]) -> Floats:
        """Select the rows that the output layer evaluates: see `CompiledGraph`."""
        self._output_rows = rows
        return self.graph.select_output_rows(rows)

    def is_in_hook(self) -> bool:
        """Return whether the current thread runs a hook."""
        return self._hook_thread == threading.get_ident()

    def run(self, first: int, end: int, tokens: int, on_op: OnOp | None = None) -> None:
        """Run the ops `first` to `end - 1`, and call the hooks between them.

        An exception of a hook ends the run, if all rows belong to one sequence. Otherwise the hooks of this sequence
        are not called any more, and it is stored in `SequenceHooks.error`.
        """
        if not self._hooked:
            self.graph.run(first, end, tokens, on_op)
            return
        cuts = [cut for cut in self.graph.cuts if first < cut <= end]
        for cut in run_in_parts(lambda start, stop: self.graph.run(start, stop, tokens, on_op), cuts, first, end):
            for point in self.graph.cuts[cut]:
                self._call_hooks(point)

    def _call_hooks(self, point: Point) -> None:
        self._hook_thread = threading.get_ident()
        rows = self._output_rows if point.rows is self.graph.graph.output_rows else None
        try:
            for hooked in self._hooked:
                if hooked.hooks.error is None:
                    self._call_hooks_of(hooked, point, rows)
        finally:
            self._hook_thread = 0

    def _call_hooks_of(self, hooked: HookedRows, point: Point, output_rows: NDArray[np.int32] | None) -> None:
        try:
            hooked.call(point, output_rows)
        except Exception as error:
            if self._is_alone:
                raise
            hooked.hooks.error = error


class HookedGraphs:
    """The graphs of a model for sets of points, those that were used last."""

    def __init__(self, compiled_graph: CompiledGraph) -> None:
        self._compiled_graph, self._without_hooks = compiled_graph, HookedBatch(compiled_graph)
        self._graphs: dict[frozenset[str], CompiledGraph] = {}  # the least recently used first

    def get(self, points: frozenset[str], progress: Progress | None = None) -> CompiledGraph:
        """Return the graph that is cut at these points."""
        graph = self._graphs.pop(points, None)
        while graph is None and len(self._graphs) >= MAX_GRAPHS:
            self._graphs.pop(next(iter(self._graphs))).close()
        self._graphs[points] = graph or self._compiled_graph.with_hooks(points, progress)
        return self._graphs[points]

    def batch(self, segments: Iterable[SegmentRows]) -> HookedBatch:
        """Return the batch of these rows, and announce them to their hooks."""
        first, hooked, n_segments = 0, list[HookedRows](), 0
        for hooks, ids, positions in segments:
            if hooks:
                hooked.append(HookedRows(hooks, first, ids, positions))
            first, n_segments = first + len(ids), n_segments + 1
        if not hooked:
            return self._without_hooks
        points = frozenset[str]().union(*(each.hooks.points for each in hooked))
        for each in hooked:
            each.hooks.begin_batch(each.tokens, each.positions)
        graph = self.get(points) if points else self._compiled_graph
        return HookedBatch(graph, hooked, is_alone=n_segments == 1)

    def close(self) -> None:
        """Close the graphs."""
        for graph in self._graphs.values():
            graph.close()
        self._graphs.clear()

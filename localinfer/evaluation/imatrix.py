"""Computation of importance matrices: how strongly each column of the weights is used on calibration data.

For every matrix, the squares of its inputs are summed per column over all tokens of all chunks, as llama-imatrix does:
an error in a column with large inputs costs more. With covariance, all products of pairs of inputs, X^T X, are summed,
which quantization with error feedback needs (Frantar et al., 2022). The principal components of the inputs are always
computed. Matrices with the same inputs share them. The inputs of values are averages, as attention makes them, and
those of queries and keys are weighted by their effect (`localinfer.runtime.attention_inputs`). Each expert has separate
sums, over the tokens routed to it, and no components or covariance.
"""

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from localinfer.errors import LocalInferError, NotEnoughMemoryError
from localinfer.gguf.imatrix_file import Entry, Imatrix
from localinfer.machine import resources
from localinfer.runtime.attention_inputs import AttentionObserver, value_rows
from localinfer.runtime.engine import Engine
from localinfer.runtime.input_statistics import ExpertInputStatistics, InputStatistics, WeightInputs
from localinfer.runtime.probe import ActivationProbe


class Collector:
    """Sums statistics of the inputs of an engine's weights: of all layers, and with `process_output` also of the output
    layer.

    Raises NotEnoughMemoryError if `covariance` needs more memory than is available.
    """

    def __init__(self, engine: Engine, *, process_output: bool = False, covariance: bool = False) -> None:
        self.chunks = 0
        self._engine, self._process_output, self._covariance = engine, process_output, covariance
        self._inputs: dict[tuple[str, ...], InputStatistics] = {}
        self._expert_inputs: dict[tuple[str, ...], ExpertInputStatistics] = {}
        if covariance:
            self._require_memory()

    def collect(self, chunks: Iterable[NDArray[np.int32]]) -> Iterator[int]:
        """Evaluate chunks of tokens, each as a separate text. Yield the number of chunks so far.

        Raises LocalInferError if an input is not finite.
        """
        with closing(AttentionObserver(self._engine, max_parts=1)) as attention:
            for chunk in chunks:
                self._engine.reset()
                with threadpool_limits(1, "blas"):  # for sums that are bit-identical for any number of threads
                    probe = ActivationProbe(self._engine, attention)
                    for given in probe.layer_inputs(chunk, include_output_layer=self._process_output):
                        self._add(given, len(chunk))
                self._require_finite()
                self.chunks += 1
                yield self.chunks

    def _add(self, given: WeightInputs, tokens: int) -> None:
        names, n = given.names, given.x.shape[1]
        if given.rows and len(given.rows) < given.weights[0].shape[0]:
            return  # of a fused matrix, which has the inputs of all rows
        if given.expert is not None:
            if names not in self._expert_inputs:
                self._expert_inputs[names] = ExpertInputStatistics.empty(given.weights[0].shape[0], n)
            self._expert_inputs[names].add(given.expert, given.x)
            return
        if names not in self._inputs:
            self._inputs[names] = InputStatistics.empty(n, components=True, covariance=self._covariance)
        self._inputs[names].add(given.x, tokens, self._engine.graph.threads_batch)

    def _require_finite(self) -> None:
        sums = {names: each.square_sums for names, each in self._inputs.items()}
        for names, squares in (sums | {names: each.square_sums for names, each in self._expert_inputs.items()}).items():
            if not np.isfinite(squares).all():
                raise self._engine.file.error(f"tensor {names[0]}", "has inputs that are not finite")

    def _require_memory(self) -> None:
        graph = self._engine.graph
        sizes = {product.first_op: 4 * product.x.n**2 for product in graph.products if product.runs is None}
        used = {name: each.covariance_count for name, each in value_rows(self._engine, max_parts=1).items()}
        values = (4 * count * self._engine.file.tensors[name].shape[1] ** 2 for name, count in used.items())
        needed, available = sum(sizes.values()) + sum(values), resources.available_memory()
        if needed > available:
            what = f"needs {needed / 2**30:.1f} GiB, {available / 2**30:.1f} GiB are available"
            raise self._engine.file.error("covariance", what, NotEnoughMemoryError)

    def to_imatrix(self, dataset: str) -> Imatrix:
        """Return the sums so far as an importance matrix; `dataset` names the text."""
        entries = {
            name: Entry(
                np.repeat(inputs.square_sums.astype(np.float32)[None], count, axis=0),
                np.full(count, inputs.count, np.float32),
                inputs.components,
                inputs.covariance,
            )
            for names, inputs in self._inputs.items()
            for name, count in ((name, self._matrices(name)) for name in names)
        }
        entries |= {
            name: Entry(inputs.square_sums.astype(np.float32), inputs.counts.astype(np.float32))
            for names, inputs in self._expert_inputs.items()
            for name in names
        }
        return Imatrix(entries, (dataset,), self.chunks, self._engine.n_ctx)

    def _matrices(self, name: str) -> int:
        """Return the number of matrices of a tensor; without routing, all of them have the same inputs."""
        return math.prod(self._engine.file.tensors[name].shape[:-2])


def unused_experts(matrix: Imatrix) -> Mapping[str, Sequence[int]]:
    """Return the experts that received no token, by the prefix of their tensors' names, such as "blk.0"."""
    unused = {
        name.rpartition(".ffn")[0]: np.flatnonzero(entry.counts == 0).tolist()
        for name, entry in sorted(matrix.entries.items(), key=lambda each: natural_key(each[0]))
    }
    return {name: experts for name, experts in unused.items() if experts}


def natural_key(name: str) -> list[int | str]:
    """Return a sort key for a name, in which numbers are ordered by value."""
    return [int(component) if component.isdecimal() else component for component in name.split(".")]


# --- merging ---


def merge(matrices: Sequence[Imatrix], chunk_size: int) -> Imatrix:
    """Return the sum of importance matrices; components and covariances only if all matrices have them.

    `chunk_size` is for matrices that do not state theirs. Raises LocalInferError if the shapes of an entry differ.
    """
    entries: dict[str, Entry] = {}
    for matrix in matrices:
        scaled, add = matrix if matrix.chunk_size else scale_to_tokens(matrix, chunk_size), cache(operator.add)
        for name, entry in scaled.entries.items():
            entries[name] = merge_entries(name, entries[name], entry, add) if name in entries else entry
    size = next((matrix.chunk_size for matrix in matrices if matrix.chunk_size), chunk_size)
    datasets = tuple(dataset for matrix in matrices for dataset in matrix.datasets)
    most = max((float(entry.counts.max()) for entry in entries.values()), default=0.0)
    return Imatrix(entries, datasets, int(most) // size, size)


def scale_to_tokens(matrix: Imatrix, chunk_size: int) -> Imatrix:
    """Convert a matrix of means over chunks to sums over tokens."""
    factor = np.float32(chunk_size)
    entries = {
        name: Entry(entry.sums * factor, entry.counts * factor, entry.components, entry.covariance)
        for name, entry in matrix.entries.items()
    }
    return replace(matrix, entries=entries, chunk_size=chunk_size)


def merge_entries(name: str, a: Entry, b: Entry, add: Callable[[Any, Any], Any]) -> Entry:
    """Return the sum of two entries. `add` must cache its results, so that shared components stay shared."""
    if a.sums.shape != b.sums.shape:
        raise LocalInferError(f"{name}: has sums of shape {a.sums.shape} in one matrix and {b.sums.shape} in another")
    covariance = add(a.covariance, b.covariance) if a.covariance and b.covariance else None
    components = add(a.components, b.components) if a.components and b.components else None
    return Entry(a.sums + b.sums, a.counts + b.counts, components, covariance)

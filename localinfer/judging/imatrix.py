"""Importance matrices: how strongly a model uses each column of its weights while it reads a text.

For every matrix the squares of what it is multiplied with are summed up, column by column, over all tokens of all
chunks, as llama-imatrix does it: an error in a column that meets large inputs costs more. With covariance it is the
products of all pairs of inputs, X^T X, whose diagonal are those sums: what quantization that passes errors on to the
columns after (Frantar et al., 2022) needs; and always the few directions that hold most of these products. Matrices
with the same inputs share them. Each expert of a mixture has sums of its own, of the tokens that it saw, and no more.
Knows nothing of text, nor of how the sums lie in a file.
"""

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from localinfer.engine import machine
from localinfer.engine.engine import Engine
from localinfer.engine.inputs import ExpertInputs, Given, Inputs
from localinfer.engine.probe import Probe
from localinfer.errors import LocalInferError, NotEnoughMemory
from localinfer.files.imatrix_file import Entry, Imatrix


class Collector:
    """Sums up the inputs of an engine's weights: those of all layers, and of the output layer too for `head`.

    Raises NotEnoughMemory when `covariance` asks for more than there is.
    """

    def __init__(self, engine: Engine, *, head: bool = False, covariance: bool = False) -> None:
        self.chunks = 0
        self._engine, self._head, self._covariance = engine, head, covariance
        self._inputs: dict[tuple[str, ...], Inputs] = {}
        self._of_experts: dict[tuple[str, ...], ExpertInputs] = {}
        if covariance:
            self._require_memory()

    def read(self, chunks: Iterable[NDArray[np.int32]]) -> Iterator[int]:
        """Read chunks of tokens, each as a text of its own; how many it were so far.

        Raises LocalInferError when an input is not finite.
        """
        for chunk in chunks:
            self._engine.reset()
            with threadpool_limits(1, "blas"):  # so that sums are the same bits for any number of threads
                for given in Probe(self._engine).inputs(chunk, head=self._head):
                    self._add(given, len(chunk))
            self._require_numbers()
            self.chunks += 1
            yield self.chunks

    def _add(self, given: Given, tokens: int) -> None:
        names, n = given.names, given.x.shape[1]
        if given.expert is not None:
            if names not in self._of_experts:
                self._of_experts[names] = ExpertInputs.of(given.weights[0].shape[0], n)
            self._of_experts[names].add(given.expert, given.x)
            return
        if names not in self._inputs:
            self._inputs[names] = Inputs.of(n, directions=True, covariance=self._covariance)
        self._inputs[names].add(given.x, tokens, self._engine.plan.threads_batch)

    def _require_numbers(self) -> None:
        sums = {names: each.squares for names, each in self._inputs.items()}
        for names, squares in (sums | {names: each.squares for names, each in self._of_experts.items()}).items():
            if not np.isfinite(squares).all():
                raise self._engine.file.error(f"tensor {names[0]}", "is multiplied with numbers that are not finite")

    def _require_memory(self) -> None:
        plan = self._engine.plan
        sizes = {product.stage: 4 * product.x.n**2 for product in plan.products if product.runs is None}
        needed, available = sum(sizes.values()), machine.available_memory()
        if needed > available:
            what = f"needs {needed / 2**30:.1f} GiB, {available / 2**30:.1f} GiB are available"
            raise self._engine.file.error("covariance", what, NotEnoughMemory)

    def matrix(self, dataset: str) -> Imatrix:
        """What was summed up so far; `dataset` names the text."""
        entries = {
            name: Entry(
                np.repeat(inputs.squares.astype(np.float32)[None], count, axis=0),
                np.full(count, inputs.count, np.float32),
                inputs.directions,
                inputs.covariance,
            )
            for names, inputs in self._inputs.items()
            for name, count in ((name, self._matrices(name)) for name in names)
        }
        entries |= {
            name: Entry(inputs.squares.astype(np.float32), inputs.counts.astype(np.float32))
            for names, inputs in self._of_experts.items()
            for name in names
        }
        return Imatrix(entries, (dataset,), self.chunks, self._engine.n_ctx)

    def _matrices(self, name: str) -> int:
        """How many a tensor has; without experts all of them have the same inputs."""
        return math.prod(self._engine.file.tensors[name].shape[:-2])


def unseen(matrix: Imatrix) -> Mapping[str, Sequence[int]]:
    """The experts that saw no token, by the beginning of their tensors' names, such as "blk.0"; only where there are
    some."""
    found = {
        name.rpartition(".ffn")[0]: np.flatnonzero(entry.counts == 0).tolist()
        for name, entry in sorted(matrix.entries.items(), key=lambda each: natural(each[0]))
    }
    return {name: experts for name, experts in found.items() if experts}


def natural(name: str) -> list[int | str]:
    """A name as what it is sorted by, numbers by their size."""
    return [int(part) if part.isdecimal() else part for part in name.split(".")]


# --- several of them ---


def merged(matrices: Sequence[Imatrix], chunk_size: int) -> Imatrix:
    """All sums together; directions and covariances only where every matrix has them. `chunk_size` is for
    those that do not say it.

    Raises LocalInferError when an entry has not the same shape in all.
    """
    entries: dict[str, Entry] = {}
    for matrix in matrices:
        scaled, add = matrix if matrix.chunk_size else by_tokens(matrix, chunk_size), cache(operator.add)
        for name, entry in scaled.entries.items():
            entries[name] = joined(name, entries[name], entry, add) if name in entries else entry
    size = next((matrix.chunk_size for matrix in matrices if matrix.chunk_size), chunk_size)
    datasets = tuple(dataset for matrix in matrices for dataset in matrix.datasets)
    most = max((float(entry.counts.max()) for entry in entries.values()), default=0.0)
    return Imatrix(entries, datasets, int(most) // size, size)


def by_tokens(matrix: Imatrix, chunk_size: int) -> Imatrix:
    """A matrix whose sums are means over each chunk, as if it had been summed up over tokens."""
    factor = np.float32(chunk_size)
    entries = {
        name: Entry(entry.sums * factor, entry.counts * factor, entry.directions, entry.covariance)
        for name, entry in matrix.entries.items()
    }
    return replace(matrix, entries=entries, chunk_size=chunk_size)


def joined(name: str, a: Entry, b: Entry, add: Callable[[Any, Any], Any]) -> Entry:
    """The sums of two entries. `add` gives the same sum for the same summands: what is shared stays shared."""
    if a.sums.shape != b.sums.shape:
        raise LocalInferError(f"{name}: has sums of shape {a.sums.shape} here and of {b.sums.shape} there")
    covariance = add(a.covariance, b.covariance) if a.covariance and b.covariance else None
    directions = add(a.directions, b.directions) if a.directions and b.directions else None
    return Entry(a.sums + b.sums, a.counts + b.counts, directions, covariance)
